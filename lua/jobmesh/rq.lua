---- rq ----------------------------------------------------------------------------------

-- A body is rq's whole record of the job, packed by MessagePack:
--   id            rq's ID
--   hash          the fields of rq:job:ID, as they are
-- and, where the job has them,
--   expires       the unix time in ms at which rq's hash would go
--   due           its score in a registry
--   wip           the word of that registry, where it isn't the one of scheduled jobs
--   entry         its member there, where it isn't the ID
-- and, where it waits for others or for its release,
--   member        its member in the fork's set of deferred jobs
--   score         its score there, where that is a sorted set
--   deferred      its score in the registry of deferred jobs
--   parents       the jobs whose sets of dependents had it
--   list          the job whose list of deferred jobs had it
--   listed        its entry in that list, where it isn't the ID
--   dependencies  the set of the jobs that it depends on

-- The families, which bodies don't tell: a hash of rq's ID of a job that others wait for,
-- to its ID here and the IDs of the others. The hash lapses as origins do.
local function families_of(prefix)
  local key, used = 'jobmesh:family:' .. prefix, false
  redis.call('HDEL', key, NOBODYS)
  local f = {}
  -- The IDs, the parent's first; none where it isn't known.
  function f.get(id)
    local ids = {}
    for word in string.gmatch(redis.call('HGET', key, id) or '', '%S+') do
      ids[#ids + 1] = word
    end
    return ids
  end
  function f.add(id, own, kin)
    local ids = redis.call('HGET', key, id) or own
    if own and string.match(ids, '^%S+') ~= own then
      ids = own -- rq has given the ID again
    end
    redis.call('HSET', key, id, ids .. (kin and ' ' .. kin or ''))
    used = true
  end
  function f.forget(id) redis.call('HDEL', key, id) end
  function f.keep()
    if used then
      redis.call('EXPIRE', key, KEPT)
    end
  end
  return f
end

-- rq_key tells from a key's name what the key is, since an empty key has no type: its
-- namespace, its kind and the name behind that. If the name has several of the words, the
-- first one is the kind.
local function rq_key(key)
  local prefix, kind, name = string.match(':' .. key, '^:(.*:)deferred$'), 'deferred', nil
  if key == 'deferred' then
    prefix = ''
  end
  for _, word in ipairs({ 'queue', 'scheduled', 'wip', 'wipqueue', 'deferred' }) do
    local p, n = parts(key, word)
    if p and (not prefix or #p < #prefix) then
      prefix, kind, name = p, word, n
    end
  end
  return prefix or split(key), kind, name
end

local function typed(key, kind)
  return redis.call('TYPE', key).ok == kind
end

-- ask reads a key of rq's. If the key holds another type, an error names it, so that data
-- that a job needs beside its hash isn't left behind unread.
local function ask(command, key, ...)
  local ok, reply = attempt(redis.call, command, key, ...)
  if ok then
    return reply
  elseif string.match(reply, '^WRONGTYPE') then
    refuse('WRONGTYPE ' .. key .. " holds a " .. redis.call('TYPE', key).ok .. ", which rq doesn't write there: RENAME or delete it")
  end
  refuse(reply)
end

-- quoted is data in an error's text.
local function quoted(text)
  return "'" .. string.gsub(string.sub(text, 1, 64), '%c', '?') .. "'"
end

-- The set of what a job depends on. rq writes it with two colons.
local function dependencies_of(prefix, id)
  return prefix .. 'job::' .. id .. ':dependencies'
end
