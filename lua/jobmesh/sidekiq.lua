---- Sidekiq -------------------------------------------------------------------------

-- The queue that a job's JSON names; nil where it can't be read.
local function named(body)
  local ok, job = pcall(cjson.decode, body)
  return ok and type(job) == 'table' and job.queue or nil
end

-- sidekiq_unicity's locks: strings unicity:CLASS:KIND:USERKEY, with a time to live.
-- Those that are taken at the push are named by their jobs, in lock_info.
local KINDS = {
  before = 'before-processing', before_bd = 'before-and-during-processing', ['until'] = 'until-processed',
  during = false, during_bd = false,
}

-- lock_named takes a lock's key apart: class and user's key together, and kind.
-- Single colons are in the user's key alone, classes have double ones.
local function lock_named(resource)
  local rest = string.match(resource, '^unicity:(.*)$')
  local at = rest and string.find(rest, '[^:]:[^:]')
  if not at then
    return
  end
  local class, kind, key = string.sub(rest, 1, at), string.match(rest, '^([^:]+):(.*)$', at + 2)
  if kind and KINDS[kind] ~= nil then
    return class .. ':' .. key, kind
  end
end

-- lock_of is the lock that a job's JSON names.
local function lock_of(body)
  if not string.find(body, '"lock_info"', 1, true) then
    return
  end
  local ok, job = pcall(cjson.decode, body)
  local info = ok and type(job) == 'table' and job.lock_info
  if type(info) ~= 'table' or type(info.resource) ~= 'string' or type(info.value) ~= 'string' then
    return
  end
  local key, kind = lock_named(info.resource)
  return KINDS[kind] and { resource = info.resource, value = info.value, key = key, kind = kind }
end

-- The namespace of a key: the part before its last word.
local function namespace(key)
  return parts(key, 'queue') or string.match(key, '^(.*:)[^:]*$') or ''
end

local function sidekiq_import(keys, args)
  local source_key, queue = two(keys, "Sidekiq's queue or set, and jobmesh's queue")
  local o = parse(args, { COUNT = count, FROM = place, QUEUE = text, WITH = true })
  local set = redis.call('TYPE', source_key).ok == 'zset'
  local from, name, now = set and o.FROM or 0, o.QUEUE or queue, milliseconds()
  local source = set and set_of(source_key, from) or tail_of(source_key)
  local origins, prefix = origins_of(queue), namespace(source_key)
  local with, chosen = options(o, queue)
  -- The lock that Sidekiq's job has becomes the job's lock here. It ends when it would have
  -- ended there, but not before the job is due. If another job has the lock by now, this one
  -- comes without it.
  local function locked(body, seconds)
    local lock = not chosen and lock_of(body)
    local key = lock and prefix .. lock.resource
    if not lock or redis.call('TYPE', key).ok ~= 'string' or redis.call('GET', key) ~= lock.value then
      return nil, {}
    elseif not alone() then
      no_quorum('the lock ' .. key)
    end
    local ends = redis.call('PEXPIRETIME', key)
    local more = { 'UNIQUE', KINDS[lock.kind], 'KEY', lock.key, 'SCOPE', 'mesh', 'ONCONFLICT', 'raise' }
    if ends > 0 then
      more[#more + 1] = 'LOCKTTL'
      more[#more + 1] = math.min(math.max(1, math.ceil((ends - now) / 1000) - seconds), FOREVER)
    end
    return { key = key, ends = ends }, more
  end
  local t = into(o.COUNT, source, queue, o, function(item)
    if set and named(item.body) ~= name then
      return 'passed'
    end
    local seconds = set and delay(tonumber(item.score), now) or 0
    local lock, more = locked(item.body, seconds)
    if set then
      more[#more + 1] = 'DELAY'
      more[#more + 1] = seconds
    end
    local id = add(queue, item.body, with, more)
    if not id then
      return 'dropped'
    end
    along(id, function()
      if set then
        origins.set(id, item.score .. ' ' .. source_key, now / 1000 + seconds)
      end
      if lock then
        origins.set(id .. LOCKED, string.format('%.0f', lock.ends), now / 1000 + seconds)
        redis.call('UNLINK', lock.key)
      end
    end)
    return 'moved'
  end)
  origins.keep()
  return answer(t, source.left(t), set and string.format('%.0f', from + t.passed))
end

local function sidekiq_export(keys, args)
  local queue, list = two(keys, "jobmesh's queue, and Sidekiq's")
  local o = parse(args, EXPORT)
  local prefix, name = split(list)
  redis.call('LTRIM', list, 0, -1)
  local origins, now = origins_of(queue), milliseconds()
  -- A lock that came with the job, and that it still has, goes back with it.
  local function unlock(job)
    local ends = tonumber(origins.get(job.id .. LOCKED) or nil)
    local lock = ends and lock_of(job.body)
    if not lock or (job.lock or show(job.id).lock) ~= 'wait' then
      return
    elseif ends <= 0 then
      redis.call('SET', prefix .. lock.resource, lock.value, 'NX')
    elseif ends > now then
      redis.call('SET', prefix .. lock.resource, lock.value, 'PXAT', string.format('%.0f', ends), 'NX')
    end
  end
  -- A job that came from a set goes back there, even if it is due by now. A set can't have two
  -- equal jobs: the second one stays here while it is delayed, and goes to the list after that.
  local function put(job)
    local origin = origins.get(job.id)
    local score, set = string.match(origin or '', '^(%S+) (.*)$')
    if not score and job.due then
      score, set = string.format('%.3f', job.due / 1000), prefix .. 'schedule'
    end
    if not score or redis.call('ZADD', set, 'NX', score, job.body) == 0 then
      if job.due then
        return 'passed'
      end
      redis.call('SADD', prefix .. 'queues', name)
      redis.call('LPUSH', list, job.body)
    end
    unlock(job)
    origins.forget(job.id)
    return 'moved'
  end
  return export(o, queue, put, put)
end

-- sidekiq_locks lists locks that are still there, by steps of a scan.
local function sidekiq_locks(keys, args)
  local prefix = #keys == 1 and string.match(keys[1], '^(.-)unicity:$')
  if not prefix then
    refuse("ERR give one key: 'unicity:', behind the namespace if there is one")
  end
  local o = parse(args, { COUNT = count, FROM = cursor })
  local pattern = string.gsub(keys[1], '[%*%?%[%]\\]', '\\%0') .. '*'
  local found = redis.call('SCAN', o.FROM or '0', 'MATCH', pattern, 'COUNT', o.COUNT, 'TYPE', 'string')
  local locks = {}
  for _, key in ipairs(found[2]) do
    local _, kind = lock_named(string.sub(key, #prefix + 1))
    if kind then
      locks[#locks + 1] = { key, kind, redis.call('PTTL', key) }
    end
  end
  return { locks, found[1] }
end

register('sidekiq_import', sidekiq_import, "2 queue:NAME | schedule | retry queue [COUNT n] [FROM p] [QUEUE name] [WITH option ...]")
register('sidekiq_export', sidekiq_export, "2 queue queue:NAME [COUNT n] [FROM p] [ACTIVE]")
register('sidekiq_locks', sidekiq_locks, "1 unicity: [COUNT n] [FROM p]", { 'no-writes' })
