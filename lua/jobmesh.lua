#!lua name=jobmesh

-- Moves queues between the key layouts of Resque (with resque-uniqueue's keys
-- too), Sidekiq and rq, and jobmesh. Each call is atomic, moves a bounded batch,
-- and removes from the source just what the target has taken; the next call goes
-- on. What users need to know is in module/COMMANDS.md.
--
-- A body is the library's own record of the job, byte for byte: JSON is read
-- where it must be, and never written anew.

local MOST = 10000       -- items that one call looks at
local USUAL = 1000       -- by default
local CHUNK = 100        -- items that are in Lua's memory at a time
local BYTES = 16777216   -- of bodies, after which a call begins no other chunk
local FOREVER = 2147483647 -- seconds: ADDJOB's longest TTL, since the libraries' jobs don't expire
local KEPT = 604800      -- seconds for which an origin outlives its due time

local LOCKED = ' lock'     -- behind an ID in a hash of origins
local NOBODYS = '\0jobmesh\0' -- an item that no queue holds
local WAITING = 'waiting' -- FROM of an export, once the delayed jobs are through

-- A refusal has changed nothing: it is raised before the first change.
local function refuse(text)
  error(text, 0)
end

-- attempt is pcall, with the text of the error.
local function attempt(work, ...)
  local ok, reply = pcall(work, ...)
  if not ok and type(reply) == 'table' then
    reply = reply.err
  end
  return ok, reply
end

-- served answers errors as other commands do, without the place in this file.
local function served(work)
  return function(keys, args)
    local ok, reply = attempt(work, keys, args)
    if ok then
      return reply
    end
    return redis.error_reply(string.match(reply, '^%u+ ') and reply or 'ERR ' .. reply)
  end
end

local function milliseconds()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

---- Options ------------------------------------------------------------------

-- parse reads a function's arguments. known: option to its kind, true for a word
-- alone, a function for one with a value, which it reads. WITH ends them: what
-- follows is ADDJOB's.
local function parse(args, known)
  local o, i = { COUNT = USUAL, WITH = {} }, 1
  while i <= #args do
    local name = string.upper(args[i])
    local kind = known[name]
    if name == 'WITH' and kind then
      o.WITH = { unpack(args, i + 1) }
      break
    elseif kind == true then
      o[name] = true
    elseif kind and i < #args then
      i = i + 1
      o[name] = kind(args[i])
    else
      refuse('ERR syntax error')
    end
    i = i + 1
  end
  return o
end

local function natural(text, most)
  local n = #text <= 15 and string.match(text, '^%d+$') and tonumber(text)
  return n and n <= most and n or nil
end

local function count(text)
  local n = natural(text, MOST)
  if not n or n == 0 then
    refuse('ERR COUNT must be between 1 and ' .. MOST)
  end
  return n
end

local function place(text)
  return natural(text, 1e15) or refuse('ERR FROM must be what the call before answered')
end

local function cursor(text)
  if text ~= WAITING and not (#text <= 20 and string.match(text, '^%d+$')) then
    refuse('ERR FROM must be what the call before answered')
  end
  return text
end

local function text(value)
  return value
end

local function two(keys, what)
  if #keys ~= 2 then
    refuse('ERR give two keys: ' .. what)
  elseif keys[1] == keys[2] then
    refuse('ERR the two keys are one')
  end
  return keys[1], keys[2]
end

-- 'app:queue:mail' and 'queue' give 'app:' and 'mail'; nil where the key has
-- another form.
local function parts(key, word)
  local prefix, name = string.match(':' .. key, '^(.-:)' .. word .. ':(.+)$')
  return prefix and string.sub(prefix, 2), name
end

local function split(key)
  local prefix, name = parts(key, 'queue')
  if not prefix then
    refuse("ERR 'queue:' and a name must be in the key of the library's queue")
  end
  return prefix, name
end

---- Moving ---------------------------------------------------------------------

-- A source hands items out: peek(n, t) the next, at most n, drop(items) removes
-- those that were taken, left(t) counts what remains to be looked at. one(item)
-- gives an item to the target: 'moved', 'dropped' where it isn't needed there,
-- 'passed' where it is to stay. An error ends the batch; the next call will meet
-- it first, and answer it, so that an error has changed nothing. fit, if given, is
-- asked before each chunk whether the target takes it, and raises an error if not.
local function move(limit, source, one, fit)
  local t = { moved = 0, dropped = 0, passed = 0 }
  local looked, bytes, why = 0, 0, nil
  while looked < limit and bytes < BYTES and not why do
    local items = source.peek(math.min(CHUNK, limit - looked), t)
    if #items == 0 then
      break
    end
    local gone = {}
    for i, item in ipairs(items) do
      local ok, verdict = true, nil
      if i == 1 and fit then
        ok, verdict = attempt(fit)
      end
      if ok then
        ok, verdict = attempt(one, item)
      end
      if not ok then
        why = verdict
        break
      end
      t[verdict] = t[verdict] + 1
      bytes = bytes + #item.body
      if verdict ~= 'passed' then
        gone[#gone + 1] = item
      end
    end
    if #gone > 0 then
      source.drop(gone)
    end
    looked = looked + #items
  end
  if why and t.moved + t.dropped == 0 then
    refuse(why)
  end
  t.stopped = why
  return t
end

local function answer(t, left, from)
  if left == 0 then
    from = '0'
  end
  return { t.moved, left, t.dropped, from or '0' }
end

local function field(items, name)
  local out = {}
  for i, item in ipairs(items) do
    out[i] = item[name]
  end
  return out
end

-- Each source begins with a write that changes nothing: whoever may not take
-- items away, or names a key of another type, hears it before any was moved.

-- The head of a list is the oldest.
local function head_of(key)
  redis.call('LTRIM', key, 0, -1)
  return {
    peek = function(n)
      local items = redis.call('LRANGE', key, 0, n - 1)
      for i, body in ipairs(items) do
        items[i] = { body = body }
      end
      return items
    end,
    drop = function(items) redis.call('LTRIM', key, #items, -1) end,
    left = function() return redis.call('LLEN', key) end,
  }
end

-- The tail of a list is the oldest.
local function tail_of(key)
  redis.call('LTRIM', key, 0, -1)
  return {
    peek = function(n)
      local items, oldest_first = redis.call('LRANGE', key, -n, -1), {}
      for i, body in ipairs(items) do
        oldest_first[#items - i + 1] = { body = body }
      end
      return oldest_first
    end,
    drop = function(items) redis.call('LTRIM', key, 0, -#items - 1) end,
    left = function() return redis.call('LLEN', key) end,
  }
end

-- A sorted set by due times, from a place on.
local function set_of(key, from)
  redis.call('ZREM', key, NOBODYS)
  return {
    peek = function(n, t)
      local first = from + t.passed
      local flat, items = redis.call('ZRANGE', key, first, first + n - 1, 'WITHSCORES'), {}
      for i = 1, #flat, 2 do
        items[#items + 1] = { body = flat[i], score = flat[i + 1] }
      end
      return items
    end,
    drop = function(items) redis.call('ZREM', key, unpack(field(items, 'body'))) end,
    left = function(t) return math.max(0, redis.call('ZCARD', key) - from - t.passed) end,
  }
end

-- The waiting jobs of a queue of jobmesh. They are acknowledged, not deleted, so
-- that other nodes drop their copies too.
local function jobs_of(queue)
  redis.call('ACKJOB')
  return {
    peek = function(n)
      local items = redis.call('QPEEK', queue, n)
      for i, job in ipairs(items) do
        items[i] = { id = job[2], body = job[3] }
      end
      return items
    end,
    drop = function(items) redis.call('ACKJOB', unpack(field(items, 'id'))) end,
    -- Those that are held back for their keys stay with the ones that run.
    left = function() return #redis.call('QPEEK', queue, 1) > 0 and redis.call('QLEN', queue) or 0 end,
  }
end

-- Whether a job, as SHOW describes it, waits for its due time: the time at which
-- it will be queued is the one that it was given at first.
local function due(job, now)
  local at = job.ctime / 1e6 + job.delay * 1000
  local within = job['next-requeue-within']
  if job.delay > 0 and within and math.abs(now + within - at) < 1000 then
    return at
  end
end

-- What SHOW says of a job; nothing where it is unknown.
local function show(id)
  local shown, job = redis.call('SHOW', id) or {}, {}
  for i = 1, #shown, 2 do
    job[shown[i]] = shown[i + 1]
  end
  return job
end

-- The other jobs of a queue, by one step of a scan, with all that SHOW says. Only
-- once all that it found were seen does the scan go on at next.
local function held_by(queue, from, limit)
  local found = redis.call('JSCAN', from, 'COUNT', limit, 'QUEUE', queue, 'STATE', 'active', 'REPLY', 'id')
  local ids, now = found[2], milliseconds()
  local looked = 0
  return {
    next = found[1],
    seen = function() return looked == #ids end,
    peek = function(n)
      local items = {}
      while looked < #ids and #items < n do
        looked = looked + 1
        local job = show(ids[looked].ok)
        job.body = job.body or ''
        job.due = job.state == 'active' and due(job, now)
        items[#items + 1] = job
      end
      return items
    end,
    drop = function(items) redis.call('ACKJOB', unpack(field(items, 'id'))) end,
  }
end

---- Into jobmesh -----------------------------------------------------------------

-- add gives a job to jobmesh, and returns its ID; nothing where ADDJOB drops the
-- job. A script can't wait for other nodes, so they get their copies after it.
local function add(queue, body, with, more)
  local line = { 'ADDJOB', queue, body, 0, 'TTL', FOREVER, 'ASYNC' }
  for _, list in ipairs({ with, more or {} }) do
    for _, word in ipairs(list) do
      line[#line + 1] = word
    end
  end
  local reply = redis.call(unpack(line))
  return reply and reply.ok
end

-- How many words ADDJOB's options have behind them, where it isn't one.
local BEHIND = { ASYNC = 0, DEFERRED = 0 }

-- said is what options of ADDJOB say of uniqueness: option to lower-case word.
local function said(with)
  local o, i = {}, 1
  while i <= #with do
    local name, value = string.upper(with[i]), string.lower(with[i + 1] or '')
    if name == 'UNIQUE' or name == 'ONCONFLICT' then
      o[name] = value
    end
    local choice = name == 'ONCONFLICT' or name == 'ONBUSY'
    i = i + 1 + (BEHIND[name] or choice and value == 'reschedule' and 2 or 1)
  end
  return o
end

-- alone says whether there are no other nodes, with which locks had to be agreed on.
local function alone()
  return string.find(redis.call('INFO', 'jobmesh'), 'jobmesh_known_nodes:1\r', 1, true) ~= nil
end

local function no_quorum(whose)
  refuse("NOQUORUM " .. whose .. " has to be agreed on with the other nodes of the mesh, for which a function can't wait: move the queue"
    .. " before the node meets others, or WITH UNIQUE none")
end

-- options are those of ADDJOB for every job of an import, and whether they or the
-- queue's settings say how jobs are to be unique. ADDJOB's answer must tell a new
-- job from another that has its key.
local function options(o, queue)
  local with, own = o.WITH, said(o.WITH)
  local set, flat = {}, redis.call('QCONFIG', 'GET', queue)
  for i = 1, #flat, 2 do
    set[string.upper(flat[i])] = string.lower(string.match(flat[i + 1], '^%S*'))
  end
  local unique = own.UNIQUE or set.UNIQUE or 'none'
  local conflict = own.ONCONFLICT or set.ONCONFLICT
  if unique == 'none' or unique == 'during-processing' then
    return with, own.UNIQUE
  elseif conflict == 'replace' then
    refuse('ERR ONCONFLICT replace is not for moving, since it would take one job for another: give WITH ONCONFLICT drop, raise or reschedule')
  elseif not alone() then
    no_quorum('the lock of a unique job')
  elseif conflict == 'return' then
    with = { unpack(with) }
    with[#with + 1], with[#with + 2] = 'ONCONFLICT', 'drop'
  end
  return with, own.UNIQUE
end

-- own_copy says whether the node keeps the jobs that it is given. A leaving one,
-- or one that is short of memory, has others hold them, and a script can't wait
-- until they do: for that while nobody would answer for them.
local function own_copy()
  local info = redis.call('INFO', 'jobmesh')
  if string.find(info, 'jobmesh_leaving:yes', 1, true) then
    refuse('LEAVING this node is leaving the mesh, and keeps no jobs: move the queue on another node')
  elseif not string.find(info, 'jobmesh_memory_level:0', 1, true) then
    refuse('OOM this node is above 75 % of maxmemory, and keeps no jobs that it is given')
  end
end

-- along does what goes with a job that was added; it is taken back where that
-- can't be done. Imports that need it begin with ACKJOB, to know that they may.
local function along(id, work, ...)
  local ok, why = attempt(work, ...)
  if not ok then
    redis.call('ACKJOB', id)
    refuse(why)
  end
end

-- Seconds until a due time, whole ones, so that no job comes too early.
local function delay(score, now)
  return math.min(math.max(0, math.ceil(score - now / 1000)), FOREVER - 1)
end

-- Where a job came from, for what its body doesn't tell: a score, a start time.
-- It serves to move the job back, and lapses by itself.
local function origins_of(queue)
  local key, last = 'jobmesh:origin:' .. queue, 0
  redis.call('ACKJOB')
  redis.call('HDEL', key, NOBODYS)
  return {
    set = function(id, value, at)
      redis.call('HSET', key, id, value)
      last = math.max(last, at)
    end,
    get = function(id) return redis.call('HGET', key, id) end,
    forget = function(id) redis.call('HDEL', key, id, id .. LOCKED) end,
    -- Ends a call that has set some.
    keep = function()
      if last > 0 then
        local at = string.format('%.0f', last + KEPT)
        redis.call('EXPIREAT', key, at, 'NX')
        redis.call('EXPIREAT', key, at, 'GT')
      end
    end,
  }
end

---- Out of jobmesh -----------------------------------------------------------------

-- export moves a queue out: first, where the library has a place for them, the
-- delayed jobs, then the waiting ones. With ACTIVE those that were delivered, and
-- not acknowledged, are queued first, at their old places.
local function export(o, queue, waiting, delayed)
  local t = { moved = 0, dropped = 0 }
  local jobs, from = jobs_of(queue), o.FROM or '0'
  if not delayed and not o.ACTIVE then
    from = WAITING
  end
  if from ~= WAITING then
    local held = held_by(queue, from, o.COUNT)
    t = move(math.huge, held, function(job)
      if job.due and delayed then
        return delayed(job)
      elseif o.ACTIVE and job.state == 'active' and not job.due then
        redis.call('ENQUEUE', job.id)
      end
      return 'passed'
    end)
    local through = held.seen() and not t.stopped
    if not through or held.next ~= '0' then
      -- How many more there are isn't known: one at least.
      return answer(t, jobs.left() + 1, through and held.next or from)
    end
  end
  local took = t.moved + t.dropped
  if took < o.COUNT then
    local ok, more = attempt(move, o.COUNT - took, jobs, waiting)
    if ok then
      t.moved, t.dropped = t.moved + more.moved, t.dropped + more.dropped
    elseif took == 0 then
      refuse(more)
    end
  end
  return answer(t, jobs.left(), WAITING)
end

local EXPORT = { COUNT = count, FROM = cursor, ACTIVE = true }

---- Resque --------------------------------------------------------------------------

-- The keys that resque-uniqueue keeps beside a queue, and how many each holds.
local function companions(list)
  local c = { set = list .. ':uniqueue', times = list .. ':start_at' }
  c.counts = { redis.call('LLEN', list), redis.call('SCARD', c.set), redis.call('LLEN', c.times) }
  c.there = c.counts[2] + c.counts[3] > 0
  c.even = c.counts[1] == c.counts[2] and c.counts[1] == c.counts[3]
  return c
end

local function uneven(list, c, remedy)
  refuse(string.format("UNEVEN %s holds %d jobs, its set ':uniqueue' %d, its list ':start_at' %d: %s",
    list, c.counts[1], c.counts[2], c.counts[3], remedy))
end

-- A queue with its companions: items have their start times. Forced, the list
-- alone counts; the set goes with it, and whatever is left when it is empty.
local function unique_list(list, c, forced)
  local source = head_of(list)
  redis.call('LTRIM', c.times, 0, -1)
  redis.call('SREM', c.set, NOBODYS)
  local plain = { peek = source.peek, drop = source.drop }
  source.peek = function(n)
    local items, times = plain.peek(n), forced and {} or redis.call('LRANGE', c.times, 0, n - 1)
    for i, item in ipairs(items) do
      item.start = times[i]
    end
    return items
  end
  source.drop = function(items)
    plain.drop(items)
    redis.call('SREM', c.set, unpack(field(items, 'body')))
    if not forced then
      redis.call('LTRIM', c.times, #items, -1)
    end
  end
  return source
end

local function resque_import(keys, args)
  local list, queue = two(keys, "Resque's queue, and jobmesh's")
  local o = parse(args, { COUNT = count, FROM = place, FORCE = true, UQ = true, JOBS = true, WITH = true })
  local c = companions(list)
  local kind = redis.call('TYPE', queue).ok
  local unique = o.UQ or not o.JOBS and (o.FORCE or c.there or kind == 'jobmesh-u')
  if o.UQ and o.JOBS or unique and #o.WITH > 0 then
    refuse('ERR UQ goes neither with JOBS nor with WITH')
  end
  if c.there and not c.even and not o.FORCE then
    uneven(list, c, 'FORCE moves what the first holds, and drops the other two')
  end
  local forced = c.there and not c.even
  local source = c.there and unique_list(list, c, forced) or head_of(list)
  local now, t = math.floor(milliseconds() / 1000), nil
  if unique then
    t = move(o.COUNT, source, function(item)
      -- null: it waits there already.
      return redis.call('UQ.PUSH', queue, item.body, 'AT', item.start or now) and 'moved' or 'dropped'
    end)
  else
    local origins, with = origins_of(queue), options(o, queue)
    t = move(o.COUNT, source, function(item)
      local id = add(queue, item.body, with)
      if not id then
        return 'dropped'
      elseif item.start then
        along(id, origins.set, id, item.start, now)
      end
      return 'moved'
    end, own_copy)
    origins.keep()
  end
  local left = source.left()
  if forced and left == 0 then
    redis.call('UNLINK', c.set, c.times)
  end
  return answer(t, left)
end

local function resque_export(keys, args)
  local queue, list = two(keys, "jobmesh's queue, and Resque's")
  local o = parse(args, { COUNT = count, FROM = cursor, ACTIVE = true, UNIQUEUE = true })
  local prefix, name = split(list)
  local c = companions(list)
  local from_unique = redis.call('TYPE', queue).ok == 'jobmesh-u'
  local unique = o.UNIQUEUE or from_unique or c.there
  if unique and not c.even then
    uneven(list, c, 'resque-uniqueue would refuse to pop from it')
  end
  redis.call('LTRIM', list, 0, -1)
  local function put(body, start)
    if unique and redis.call('SISMEMBER', c.set, body) == 1 then
      return 'dropped' -- it waits there already
    end
    redis.call('SADD', prefix .. 'queues', name)
    redis.call('RPUSH', list, body)
    if unique then
      redis.call('RPUSH', c.times, start)
      redis.call('SADD', c.set, body)
    end
    return 'moved'
  end
  if from_unique then
    redis.call('UQ.REM', queue, NOBODYS)
    local t = move(o.COUNT, {
      peek = function(n)
        local items = redis.call('UQ.PEEK', queue, 'COUNT', n) or {}
        for i, item in ipairs(items) do
          items[i] = { body = item[1], start = item[2] }
        end
        return items
      end,
      drop = function(items) redis.call('UQ.REM', queue, unpack(field(items, 'body'))) end,
    }, function(item) return put(item.body, string.format('%.0f', item.start)) end)
    return answer(t, redis.call('UQ.LEN', queue))
  end
  local origins = origins_of(queue)
  return export(o, queue, function(job)
    local start = unique and origins.get(job.id)
    if unique and not start then
      start = string.format('%.0f', math.floor(show(job.id).ctime / 1e9))
    end
    local verdict = put(job.body, start)
    origins.forget(job.id)
    return verdict
  end)
end

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

-- What comes before the last word of a key: the namespace.
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
  -- The lock that a job has becomes the job's; it ends when it would have, though
  -- not before the job is due. One that another has by now isn't the job's.
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
  local t = move(o.COUNT, source, function(item)
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
  end, own_copy)
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
  -- What came from a set goes back there, though it be due by now.
  local function put(job)
    local origin = origins.get(job.id)
    local score, set = string.match(origin or '', '^(%S+) (.*)$')
    if not score and job.due then
      score, set = string.format('%.3f', job.due / 1000), prefix .. 'schedule'
    end
    local taken
    if score then
      taken = redis.call('ZADD', set, 'NX', score, job.body)
    else
      redis.call('SADD', prefix .. 'queues', name)
      taken = redis.call('LPUSH', list, job.body)
    end
    unlock(job)
    origins.forget(job.id)
    return taken == 0 and 'dropped' or 'moved' -- a set has each job once
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

---- rq ----------------------------------------------------------------------------------

-- A body is rq's whole record of the job, packed by MessagePack: id, hash (the
-- fields of rq:job:ID, as they are), and, where it has them, expires (the unix
-- time in ms at which rq's hash would go) and due (its score in the registry of
-- scheduled jobs).
local function rq_import(keys, args)
  local source_key, queue = two(keys, "rq's queue or registry of scheduled jobs, and jobmesh's queue")
  local o = parse(args, { COUNT = count, FROM = place, WITH = true })
  -- An empty key has no type: what its name says counts, the first word of the two.
  local prefix, queue_prefix = parts(source_key, 'scheduled'), parts(source_key, 'queue')
  local scheduled = prefix and (not queue_prefix or #prefix < #queue_prefix)
  prefix = scheduled and prefix or split(source_key)
  local source = scheduled and set_of(source_key, 0) or head_of(source_key)
  local now = milliseconds()
  redis.call('ACKJOB')
  local with = options(o, queue)
  local t = move(o.COUNT, source, function(item)
    local key = prefix .. 'job:' .. item.body
    local flat = redis.call('HGETALL', key)
    if #flat == 0 then
      return 'dropped' -- expired, or cancelled: rq's workers pass over such an ID too
    end
    local record, more = { id = item.body, hash = {} }, {}
    for i = 1, #flat, 2 do
      record.hash[flat[i]] = flat[i + 1]
    end
    local expires, ttl = redis.call('PEXPIRETIME', key), FOREVER
    if expires > 0 then
      ttl = math.min(math.max(1, math.ceil((expires - now) / 1000)), FOREVER)
      record.expires = expires
      more = { 'TTL', ttl }
    end
    if scheduled then
      record.due = item.score
      more[#more + 1] = 'DELAY'
      more[#more + 1] = math.min(delay(tonumber(item.score), now), ttl - 1)
    end
    local id = add(queue, cmsgpack.pack(record), with, more)
    if id then
      along(id, redis.call, 'UNLINK', key)
    end
    return id and 'moved' or 'dropped'
  end, own_copy)
  return answer(t, source.left(t))
end

local function unpacked(body)
  local ok, record = pcall(cmsgpack.unpack, body)
  local function is(field, kind, optional)
    return type(record[field]) == kind or optional and record[field] == nil
  end
  if ok and type(record) == 'table' and is('id', 'string') and is('hash', 'table') and next(record.hash)
    and is('expires', 'number', true) and is('due', 'string', true) then
    return record
  end
end

local function rq_export(keys, args)
  local queue, list = two(keys, "jobmesh's queue, and rq's")
  local o = parse(args, EXPORT)
  local prefix, name = split(list)
  local set, now = prefix .. 'scheduled:' .. name, milliseconds()
  redis.call('LTRIM', list, 0, -1)
  redis.call('ZREM', set, NOBODYS)
  local function put(job)
    local record = unpacked(job.body)
    if not record then
      refuse('ERR the body of ' .. job.id .. " isn't a job of rq's")
    elseif record.expires and record.expires <= now then
      return 'dropped'
    end
    local key = prefix .. 'job:' .. record.id
    if redis.call('EXISTS', key) == 1 then
      refuse('ERR ' .. key .. ' exists already')
    end
    local at = record.due or job.due and string.format('%.0f', math.ceil(job.due / 1000))
    local ok, why = attempt(function()
      for f, v in pairs(record.hash) do
        redis.call('HSET', key, f, v)
      end
      redis.call('SADD', prefix .. 'queues', list)
      if record.expires then
        redis.call('PEXPIREAT', key, string.format('%.0f', record.expires))
      end
      if at then
        redis.call('ZADD', set, at, record.id)
      else
        redis.call('RPUSH', list, record.id)
      end
    end)
    if not ok then
      redis.call('UNLINK', key)
      refuse(why)
    end
    return 'moved'
  end
  return export(o, queue, put, put)
end

local function register(name, work, description, flags)
  redis.register_function{ function_name = 'jobmesh_' .. name, callback = served(work), description = description, flags = flags }
end

register('resque_import', resque_import, "2 resque:queue:NAME queue [COUNT n] [FROM p] [UQ | JOBS] [FORCE] [WITH option ...]")
register('resque_export', resque_export, "2 queue resque:queue:NAME [COUNT n] [FROM p] [ACTIVE] [UNIQUEUE]")
register('sidekiq_import', sidekiq_import, "2 queue:NAME | schedule | retry queue [COUNT n] [FROM p] [QUEUE name] [WITH option ...]")
register('sidekiq_export', sidekiq_export, "2 queue queue:NAME [COUNT n] [FROM p] [ACTIVE]")
register('sidekiq_locks', sidekiq_locks, "1 unicity: [COUNT n] [FROM p]", { 'no-writes' })
register('rq_import', rq_import, "2 rq:queue:NAME | rq:scheduled:NAME queue [COUNT n] [FROM p] [WITH option ...]")
register('rq_export', rq_export, "2 queue rq:queue:NAME [COUNT n] [FROM p] [ACTIVE]")
