#!lua name=unique_queue

-- The unique queue on plain Redis types, as resque-uniqueue keeps it: a list of
-- the items, a set of them, and a list of their start times, which stand in the
-- list's order. KEYS are these three. The module's own type (UQ.PUSH and the
-- rest) is tested and measured against it.

local EMPTY = false

local function pairs_of(items, times)
  local reply = {}
  for i, item in ipairs(items) do
    reply[i] = { item, tonumber(times[i]) }
  end
  return reply
end

-- ARGV: item, unix seconds. The new length, or null where the item waits already.
local function push(keys, args)
  if redis.call('SADD', keys[2], args[1]) == 0 then
    return EMPTY
  end
  redis.call('RPUSH', keys[3], args[2])
  return redis.call('RPUSH', keys[1], args[1])
end

-- The oldest item with its time, or null.
local function pop(keys)
  local item = redis.call('LPOP', keys[1])
  if not item then
    return EMPTY
  end
  redis.call('SREM', keys[2], item)
  return { item, tonumber(redis.call('LPOP', keys[3])) }
end

-- ARGV: count. The oldest items with their times, or null.
local function popn(keys, args)
  local items = redis.call('LPOP', keys[1], args[1])
  if not items then
    return EMPTY
  end
  for _, item in ipairs(items) do
    redis.call('SREM', keys[2], item)
  end
  return pairs_of(items, redis.call('LPOP', keys[3], args[1]))
end

-- ARGV: count. The oldest items with their times, or null.
local function peek(keys, args)
  local last = tonumber(args[1]) - 1
  local items = redis.call('LRANGE', keys[1], 0, last)
  if #items == 0 then
    return EMPTY
  end
  return pairs_of(items, redis.call('LRANGE', keys[3], 0, last))
end

local function len(keys)
  return redis.call('LLEN', keys[1])
end

-- ARGV: item. 1 where it waits, else 0.
local function has(keys, args)
  return redis.call('SISMEMBER', keys[2], args[1])
end

-- ARGV: items. How many of them waited. A list can lose an element by its place
-- only if that is marked first.
local function rem(keys, args)
  local removed = 0
  for _, item in ipairs(args) do
    if redis.call('SREM', keys[2], item) == 1 then
      local place = redis.call('LPOS', keys[1], item)
      redis.call('LREM', keys[1], 1, item)
      redis.call('LSET', keys[3], place, 'removed')
      redis.call('LREM', keys[3], 1, 'removed')
      removed = removed + 1
    end
  end
  return removed
end

redis.register_function('luq_push', push)
redis.register_function('luq_pop', pop)
redis.register_function('luq_popn', popn)
redis.register_function{ function_name = 'luq_peek', callback = peek, flags = { 'no-writes' } }
redis.register_function{ function_name = 'luq_len', callback = len, flags = { 'no-writes' } }
redis.register_function{ function_name = 'luq_has', callback = has, flags = { 'no-writes' } }
redis.register_function('luq_rem', rem)
