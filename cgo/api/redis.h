/* The part of the Redis modules API that this project uses, in declarations of its own.
 * The server gives a module one pointer, the first word of the context of
 * RedisModule_OnLoad: a function that looks up other functions by name. Through it the
 * module fills one table with everything here. So one binary serves every server that
 * has the required functions. Otherwise it tells the user which functions are missing. */
#ifndef JOBMESH_REDIS_H
#define JOBMESH_REDIS_H

#include <stddef.h>
#include <stdint.h>

enum { REDIS_OK = 0, REDIS_ERR = 1, REDIS_API_VERSION = 1 };

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleKey RedisModuleKey;
typedef struct RedisModuleIO RedisModuleIO;
typedef struct RedisModuleType RedisModuleType;
typedef struct RedisModuleDigest RedisModuleDigest;
typedef struct RedisModuleBlockedClient RedisModuleBlockedClient;
typedef struct RedisModuleCommand RedisModuleCommand;
typedef struct RedisModuleCallReply RedisModuleCallReply;
typedef struct RedisModuleInfoCtx RedisModuleInfoCtx;
typedef struct RedisModuleKeyOptCtx RedisModuleKeyOptCtx;
typedef struct RedisModuleDefragCtx RedisModuleDefragCtx;
typedef struct RedisModuleUser RedisModuleUser;
typedef struct RedisModuleServerInfoData RedisModuleServerInfoData;
typedef struct RedisModuleCommandFilterCtx RedisModuleCommandFilterCtx;
typedef struct RedisModuleCommandFilter RedisModuleCommandFilter;

/* Opening keys, and what a key holds. */
enum { KEY_READ = 1, KEY_WRITE = 2, KEY_NOTOUCH = 1 << 16, KEY_NOSTATS = 1 << 18 };
enum { KEYTYPE_EMPTY = 0, KEYTYPE_MODULE = 6, KEYTYPE_STREAM = 7 };

/* Bits of GetContextFlags. */
enum {
    CTX_LUA = 1 << 0, CTX_MULTI = 1 << 1, CTX_MASTER = 1 << 2, CTX_SLAVE = 1 << 3,
    CTX_CLUSTER = 1 << 5, CTX_AOF = 1 << 6, CTX_REPLICATED = 1 << 12,
    CTX_LOADING = 1 << 13, CTX_DENY_BLOCKING = 1 << 21, CTX_RESP3 = 1 << 22
};

/* Keyspace notification classes. */
enum { NOTIFY_GENERIC = 1 << 2, NOTIFY_LOADED = 1 << 12, NOTIFY_MODULE = 1 << 13, NOTIFY_KEYSPACE = 1 << 0, NOTIFY_KEYEVENT = 1 << 1 };

/* Of StreamAdd: the server chooses the ID. Of StreamTrimByLength: only whole nodes of the stream go. */
enum { STREAM_ADD_AUTOID = 1, STREAM_TRIM_APPROX = 1 };
typedef struct { uint64_t ms, seq; } RedisStreamID;

/* SetModuleOptions. */
enum { OPTION_HANDLE_IO_ERRORS = 1 };

/* Server events. */
enum {
    EVENT_ROLE = 0, EVENT_PERSISTENCE = 1, EVENT_FLUSHDB = 2, EVENT_LOADING = 3, EVENT_SHUTDOWN = 5,
    EVENT_REPLICA = 6, EVENT_MASTER_LINK = 7, EVENT_SWAPDB = 11, EVENT_FORK = 13, EVENT_EVENTLOOP = 15, EVENT_CONFIG = 16,
    AFTER_SLEEP = 1, /* of EVENT_EVENTLOOP */
    AOF_START = 1 /* of EVENT_PERSISTENCE */
};
typedef struct { uint64_t id, dataver; } RedisModuleEvent;
typedef void (*RedisEventFunc)(RedisModuleCtx *, RedisModuleEvent, uint64_t sub, void *data);
typedef struct { uint64_t version; int32_t sync, dbnum; } RedisFlushInfo;
typedef struct { uint64_t version; int32_t first, second; } RedisSwapInfo;

typedef int (*RedisCmdFunc)(RedisModuleCtx *, RedisModuleString **, int);
typedef int (*RedisNotifyFunc)(RedisModuleCtx *, int type, const char *event, RedisModuleString *key);
typedef void (*RedisTimerFunc)(RedisModuleCtx *, void *);
typedef void (*RedisDisconnectFunc)(RedisModuleCtx *, RedisModuleBlockedClient *);
typedef void (*RedisFreePrivdataFunc)(RedisModuleCtx *, void *);
typedef void (*RedisInfoFunc)(RedisModuleInfoCtx *, int crash);
typedef void (*RedisOneShotFunc)(void *);
typedef void (*RedisFilterFunc)(RedisModuleCommandFilterCtx *);

/* Methods of a native data type, version 5 of the structure (Redis 7.2). A server that
 * knows only version 4 ignores the last method. */
typedef struct {
    uint64_t version;
    void *(*rdb_load)(RedisModuleIO *, int encver);
    void (*rdb_save)(RedisModuleIO *, void *);
    void (*aof_rewrite)(RedisModuleIO *, RedisModuleString *, void *);
    size_t (*mem_usage)(const void *);
    void (*digest)(RedisModuleDigest *, void *);
    void (*free)(void *);
    int (*aux_load)(RedisModuleIO *, int, int);
    void (*aux_save)(RedisModuleIO *, int);
    int aux_save_triggers;
    size_t (*free_effort)(RedisModuleString *, const void *);
    void (*unlink)(RedisModuleString *, const void *);
    void *(*copy)(RedisModuleString *, RedisModuleString *, const void *);
    int (*defrag)(RedisModuleDefragCtx *, RedisModuleString *, void **);
    size_t (*mem_usage2)(RedisModuleKeyOptCtx *, const void *, size_t);
    size_t (*free_effort2)(RedisModuleKeyOptCtx *, const void *);
    void (*unlink2)(RedisModuleKeyOptCtx *, const void *);
    void *(*copy2)(RedisModuleKeyOptCtx *, const void *);
    void (*aux_save2)(RedisModuleIO *, int);
} RedisTypeMethods;
enum { REDIS_TYPE_METHODS_VERSION = 5, AUX_AFTER_RDB = 2 };

/* Command documentation (SetCommandInfo). The version record contains the sizes of
 * these structures, so that older and newer servers can read them. */
enum { ARG_STRING, ARG_INTEGER, ARG_DOUBLE, ARG_KEY, ARG_PATTERN, ARG_UNIX_TIME, ARG_TOKEN, ARG_ONEOF, ARG_BLOCK };
enum { ARG_OPTIONAL = 1, ARG_MULTIPLE = 2, ARG_MULTIPLE_TOKEN = 4 };
enum { SEARCH_INDEX = 2, SEARCH_KEYWORD = 3, FIND_RANGE = 2 };
typedef struct RedisCommandArg {
    const char *name;
    int type;
    int key_spec_index;
    const char *token, *summary, *since;
    int flags;
    const char *deprecated_since;
    struct RedisCommandArg *subargs;
    const char *display_text;
} RedisCommandArg;
typedef struct { const char *since, *changes; } RedisCommandHistory;
typedef struct {
    const char *notes;
    uint64_t flags;
    int begin_search_type;
    union { struct { int pos; } index; struct { const char *keyword; int startfrom; } keyword; } bs;
    int find_keys_type;
    union { struct { int lastkey, keystep, limit; } range; struct { int keynumidx, firstkey, keystep; } keynum; } fk;
} RedisKeySpec;
typedef struct { int version; size_t sizeof_history, sizeof_keyspec, sizeof_arg; } RedisCommandInfoVersion;
typedef struct {
    const RedisCommandInfoVersion *version;
    const char *summary, *complexity, *since;
    RedisCommandHistory *history;
    const char *tips;
    int arity;
    RedisKeySpec *key_specs;
    RedisCommandArg *args;
} RedisCommandInfo;

typedef RedisModuleString *(*RedisConfigGetString)(const char *, void *);
typedef int (*RedisConfigSetString)(const char *, RedisModuleString *, void *, RedisModuleString **);
typedef long long (*RedisConfigGetNumeric)(const char *, void *);
typedef int (*RedisConfigSetNumeric)(const char *, long long, void *, RedisModuleString **);
typedef int (*RedisConfigGetBool)(const char *, void *);
typedef int (*RedisConfigSetBool)(const char *, int, void *, RedisModuleString **);
typedef int (*RedisConfigApply)(RedisModuleCtx *, void *, RedisModuleString **);
enum { CONFIG_IMMUTABLE = 1, CONFIG_SENSITIVE = 2, CONFIG_HIDDEN = 16 };

/* X(result, Name, (parameters)): the functions that the module can't work without.
 * Redis 7.0 and Valkey 8 have all of them. */
#define REDIS_REQUIRED(X) \
    X(void *, Alloc, (size_t)) \
    X(void *, Calloc, (size_t, size_t)) \
    X(void *, Realloc, (void *, size_t)) \
    X(void, Free, (void *)) \
    X(int, CreateCommand, (RedisModuleCtx *, const char *, RedisCmdFunc, const char *, int, int, int)) \
    X(RedisModuleCommand *, GetCommand, (RedisModuleCtx *, const char *)) \
    X(int, CreateSubcommand, (RedisModuleCommand *, const char *, RedisCmdFunc, const char *, int, int, int)) \
    X(int, SetCommandInfo, (RedisModuleCommand *, const RedisCommandInfo *)) \
    X(void, SetModuleAttribs, (RedisModuleCtx *, const char *, int, int)) \
    X(int, IsModuleNameBusy, (const char *)) \
    X(void, SetModuleOptions, (RedisModuleCtx *, int)) \
    X(int, WrongArity, (RedisModuleCtx *)) \
    X(int, ReplyWithLongLong, (RedisModuleCtx *, long long)) \
    X(int, ReplyWithError, (RedisModuleCtx *, const char *)) \
    X(int, ReplyWithSimpleString, (RedisModuleCtx *, const char *)) \
    X(int, ReplyWithArray, (RedisModuleCtx *, long)) \
    X(int, ReplyWithMap, (RedisModuleCtx *, long)) \
    X(int, ReplyWithNullArray, (RedisModuleCtx *)) \
    X(int, ReplyWithNull, (RedisModuleCtx *)) \
    X(int, ReplyWithStringBuffer, (RedisModuleCtx *, const char *, size_t)) \
    X(int, ReplyWithVerbatimStringType, (RedisModuleCtx *, const char *, size_t, const char *)) \
    X(int, GetSelectedDb, (RedisModuleCtx *)) \
    X(int, SelectDb, (RedisModuleCtx *, int)) \
    X(void *, OpenKey, (RedisModuleCtx *, RedisModuleString *, int)) \
    X(void, CloseKey, (RedisModuleKey *)) \
    X(int, KeyType, (RedisModuleKey *)) \
    X(long long, GetExpire, (RedisModuleKey *)) \
    X(int, DeleteKey, (RedisModuleKey *)) \
    X(int, ModuleTypeSetValue, (RedisModuleKey *, RedisModuleType *, void *)) \
    X(RedisModuleType *, ModuleTypeGetType, (RedisModuleKey *)) \
    X(void *, ModuleTypeGetValue, (RedisModuleKey *)) \
    X(RedisModuleType *, CreateDataType, (RedisModuleCtx *, const char *, int, RedisTypeMethods *)) \
    X(int, SignalModifiedKey, (RedisModuleCtx *, RedisModuleString *)) \
    X(RedisModuleString *, CreateString, (RedisModuleCtx *, const char *, size_t)) \
    X(void, FreeString, (RedisModuleCtx *, RedisModuleString *)) \
    X(const char *, StringPtrLen, (const RedisModuleString *, size_t *)) \
    X(RedisModuleCallReply *, Call, (RedisModuleCtx *, const char *, const char *, ...)) \
    X(void, FreeCallReply, (RedisModuleCallReply *)) \
    X(const char *, CallReplyProto, (RedisModuleCallReply *, size_t *)) \
    X(int, Replicate, (RedisModuleCtx *, const char *, const char *, ...)) \
    X(int, ReplicateVerbatim, (RedisModuleCtx *)) \
    X(int, GetContextFlags, (RedisModuleCtx *)) \
    X(float, GetUsedMemoryRatio, (void)) \
    X(int, AvoidReplicaTraffic, (void)) \
    X(unsigned long long, GetClientId, (RedisModuleCtx *)) \
    X(RedisModuleString *, GetCurrentUserName, (RedisModuleCtx *)) \
    X(RedisModuleUser *, GetModuleUserFromUserName, (RedisModuleString *)) \
    X(int, FreeModuleUser, (RedisModuleUser *)) \
    X(int, PublishMessage, (RedisModuleCtx *, RedisModuleString *, RedisModuleString *)) \
    X(int, ACLCheckCommandPermissions, (RedisModuleUser *, RedisModuleString **, int)) \
    X(int, ACLCheckKeyPermissions, (RedisModuleUser *, RedisModuleString *, int)) \
    X(RedisModuleBlockedClient *, BlockClient, (RedisModuleCtx *, RedisCmdFunc, RedisCmdFunc, RedisFreePrivdataFunc, long long)) \
    X(RedisModuleBlockedClient *, BlockClientOnKeys, (RedisModuleCtx *, RedisCmdFunc, RedisCmdFunc, RedisFreePrivdataFunc, long long, RedisModuleString **, int, void *)) \
    X(RedisModuleString *, GetBlockedClientReadyKey, (RedisModuleCtx *)) \
    X(int, UnblockClient, (RedisModuleBlockedClient *, void *)) \
    X(void *, GetBlockedClientPrivateData, (RedisModuleCtx *)) \
    X(RedisModuleBlockedClient *, GetBlockedClientHandle, (RedisModuleCtx *)) \
    X(void, SetDisconnectCallback, (RedisModuleBlockedClient *, RedisDisconnectFunc)) \
    X(RedisModuleCtx *, GetDetachedThreadSafeContext, (RedisModuleCtx *)) \
    X(uint64_t, CreateTimer, (RedisModuleCtx *, long long, RedisTimerFunc, void *)) \
    X(int, StopTimer, (RedisModuleCtx *, uint64_t, void **)) \
    X(int, EventLoopAddOneShot, (RedisOneShotFunc, void *)) \
    X(int, SubscribeToServerEvent, (RedisModuleCtx *, RedisModuleEvent, RedisEventFunc)) \
    X(int, SubscribeToKeyspaceEvents, (RedisModuleCtx *, int, RedisNotifyFunc)) \
    X(int, NotifyKeyspaceEvent, (RedisModuleCtx *, int, const char *, RedisModuleString *)) \
    X(int, GetNotifyKeyspaceEvents, (void)) \
    X(int, StreamAdd, (RedisModuleKey *, int, RedisStreamID *, RedisModuleString **, long)) \
    X(long long, StreamTrimByLength, (RedisModuleKey *, int, long long)) \
    X(size_t, ValueLength, (RedisModuleKey *)) \
    X(int, RegisterInfoFunc, (RedisModuleCtx *, RedisInfoFunc)) \
    X(int, InfoAddSection, (RedisModuleInfoCtx *, const char *)) \
    X(int, InfoAddFieldCString, (RedisModuleInfoCtx *, const char *, const char *)) \
    X(int, InfoAddFieldLongLong, (RedisModuleInfoCtx *, const char *, long long)) \
    X(RedisModuleServerInfoData *, GetServerInfo, (RedisModuleCtx *, const char *)) \
    X(void, FreeServerInfo, (RedisModuleCtx *, RedisModuleServerInfoData *)) \
    X(const char *, ServerInfoGetFieldC, (RedisModuleServerInfoData *, const char *)) \
    X(int, RegisterBoolConfig, (RedisModuleCtx *, const char *, int, unsigned, RedisConfigGetBool, RedisConfigSetBool, RedisConfigApply, void *)) \
    X(int, RegisterNumericConfig, (RedisModuleCtx *, const char *, long long, unsigned, long long, long long, RedisConfigGetNumeric, RedisConfigSetNumeric, RedisConfigApply, void *)) \
    X(int, RegisterStringConfig, (RedisModuleCtx *, const char *, const char *, unsigned, RedisConfigGetString, RedisConfigSetString, RedisConfigApply, void *)) \
    X(int, LoadConfigs, (RedisModuleCtx *)) \
    X(RedisModuleCommandFilter *, RegisterCommandFilter, (RedisModuleCtx *, RedisFilterFunc, int flags)) \
    X(int, UnregisterCommandFilter, (RedisModuleCtx *, RedisModuleCommandFilter *)) \
    X(int, CommandFilterArgsCount, (RedisModuleCommandFilterCtx *)) \
    X(RedisModuleString *, CommandFilterArgGet, (RedisModuleCommandFilterCtx *, int)) \
    X(int, CommandFilterArgInsert, (RedisModuleCommandFilterCtx *, int, RedisModuleString *)) \
    X(int, CommandFilterArgReplace, (RedisModuleCommandFilterCtx *, int, RedisModuleString *)) \
    X(int, CommandFilterArgDelete, (RedisModuleCommandFilterCtx *, int)) \
    X(void, SaveUnsigned, (RedisModuleIO *, uint64_t)) \
    X(uint64_t, LoadUnsigned, (RedisModuleIO *)) \
    X(void, SaveStringBuffer, (RedisModuleIO *, const char *, size_t)) \
    X(char *, LoadStringBuffer, (RedisModuleIO *, size_t *)) \
    X(int, IsIOError, (RedisModuleIO *)) \
    X(const RedisModuleString *, GetKeyNameFromIO, (RedisModuleIO *)) \
    X(void, EmitAOF, (RedisModuleIO *, const char *, const char *, ...)) \
    X(void, DigestAddStringBuffer, (RedisModuleDigest *, const char *, size_t)) \
    X(void, DigestAddLongLong, (RedisModuleDigest *, long long)) \
    X(void, DigestEndSequence, (RedisModuleDigest *)) \
    X(void, Log, (RedisModuleCtx *, const char *, const char *, ...))

/* These are used if the server has them. Without CachedMicroseconds (before 7.2) the
 * clock is read once in each command. Without GetModuleUserACLString (before 7.0.6)
 * each user counts as one whose keys are limited. Without the other ACL functions
 * (before 7.4) the module has no category of its own. */
#define REDIS_OPTIONAL(X) \
    X(int64_t, CachedMicroseconds, (void)) \
    X(RedisModuleString *, GetModuleUserACLString, (RedisModuleUser *)) \
    X(int, AddACLCategory, (RedisModuleCtx *, const char *)) \
    X(int, SetCommandACLCategories, (RedisModuleCommand *, const char *))

struct redis_api {
#define REDIS_FIELD(result, name, params) result (*name) params;
    REDIS_REQUIRED(REDIS_FIELD)
    REDIS_OPTIONAL(REDIS_FIELD)
#undef REDIS_FIELD
};

#endif
