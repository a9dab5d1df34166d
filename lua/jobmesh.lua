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
-- An item's kin is how many more came with it; many of them end the batch, and cut
-- says that it was within a chunk.
local function move(limit, source, one, fit)
  local t = { moved = 0, dropped = 0, passed = 0 }
  local looked, bytes, kin, why = 0, 0, 0, nil
  while looked < limit and bytes < BYTES and kin < USUAL and not why do
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
      if item.kin then
        kin, t.moved = kin + item.kin, t.moved + item.kin
        if kin >= USUAL and i < #items then
          t.cut = true
          break
        end
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
local function held_by(queue, from, limit, also)
  local found = redis.call('JSCAN', from, 'COUNT', limit, 'QUEUE', queue, 'REPLY', 'id', 'STATE', 'active', 'STATE', also)
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
-- not acknowledged, are queued first, at their old places. deferred: the library
-- has a place for deferred jobs too.
local function export(o, queue, waiting, delayed, deferred)
  local t = { moved = 0, dropped = 0 }
  local jobs, from = jobs_of(queue), o.FROM or '0'
  if not delayed and not o.ACTIVE then
    from = WAITING
  end
  if from ~= WAITING then
    local held = held_by(queue, from, o.COUNT, deferred and 'deferred' or 'active')
    t = move(math.huge, held, function(job)
      if delayed and (job.due or job.state == 'deferred') then
        return delayed(job)
      elseif o.ACTIVE and job.state == 'active' and not job.due then
        redis.call('ENQUEUE', job.id)
      end
      return 'passed'
    end)
    local through = held.seen() and not t.stopped and not t.cut
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
-- time in ms at which rq's hash would go), due (its score in a registry) and wip
-- (the word of that registry, where it isn't the one of scheduled jobs); of what
-- waits: member (of the fork's set of deferred jobs), deferred (its score in the
-- registry of these), parents (whose sets of dependents had it), list (whose list
-- of deferred jobs had it), and dependencies (the set of its own).

-- Who is who, for what bodies don't tell: rq's IDs of jobs that others wait for, to
-- their own IDs and those of the others. It lapses as origins do.
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
    redis.call('HSET', key, id, (redis.call('HGET', key, id) or own) .. (kin and ' ' .. kin or ''))
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

-- What a key of rq's is by its name, since an empty one has no type: namespace,
-- kind and the name behind it. The first of the words counts.
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

local function members(key)
  return typed(key, 'set') and redis.call('SMEMBERS', key) or {}
end

-- The set of what a job depends on. rq writes it with two colons.
local function dependencies_of(prefix, id)
  return prefix .. 'job::' .. id .. ':dependencies'
end

-- The jobs of rq's that one namespace has, on their way here.
local function rq_jobs(o, prefix, name, queue)
  local families, now, withs = families_of(prefix), milliseconds(), {}
  local nobody = prefix .. 'job:' .. NOBODYS
  redis.call('UNLINK', nobody)
  redis.call('SREM', nobody, NOBODYS)
  redis.call('ZREM', nobody, NOBODYS)
  local self = { keep = families.keep }

  function self.read(id)
    local flat, hash = redis.call('HGETALL', prefix .. 'job:' .. id), {}
    for i = 1, #flat, 2 do
      hash[flat[i]] = flat[i + 1]
    end
    return #flat > 0 and hash or nil
  end

  function self.parents(id, hash)
    local ids = members(dependencies_of(prefix, id))
    if #ids == 0 and hash.dependency_ids then
      local ok, list = pcall(cjson.decode, hash.dependency_ids)
      for _, p in ipairs(ok and type(list) == 'table' and list or {}) do
        ids[#ids + 1] = type(p) == 'string' and p or nil
      end
    end
    if #ids == 0 and (hash.dependency_id or '') ~= '' then
      ids[1] = hash.dependency_id
    end
    return ids
  end

  -- What a job waits for: IDs of those that are here, and whether one isn't yet, or
  -- has gone without a word. plan: who is coming in this step.
  function self.waits(parents, plan)
    local ids, whose, missing, gone = {}, {}, false, false
    for _, p in ipairs(parents) do
      local id = plan[p] and plan[p].job or families.get(p)[1]
      local state = id and show(id).state
      if state and state ~= 'acked' then
        ids[#ids + 1], whose[#whose + 1] = id, p
      elseif not id then
        local status = redis.call('EXISTS', prefix .. 'job:' .. p) == 1 and (redis.call('HGET', prefix .. 'job:' .. p, 'status') or '')
        gone = gone or not status
        missing = missing or status and status ~= 'finished'
      end
    end
    return ids, whose, missing, gone
  end

  -- put adds a job, as a part of a plan; nil where ADDJOB drops it. first: what
  -- the record has beside the usual; words: options of ADDJOB.
  local function put(plan, id, hash, record, words, whose)
    local key, to = prefix .. 'job:' .. id, hash.origin
    if not to or to == '' or to == name then
      to = queue
    end
    withs[to] = withs[to] or options(o, to)
    record.id, record.hash = id, hash
    local dependencies, registry = members(dependencies_of(prefix, id)), prefix .. 'deferred:' .. (hash.origin or name)
    if #dependencies > 0 then
      record.dependencies = dependencies
    end
    if typed(registry, 'zset') then
      record.deferred = redis.call('ZSCORE', registry, id) or nil
    end
    local more, ttl = { unpack(words) }, FOREVER
    local expires = redis.call('PEXPIRETIME', key)
    if expires > 0 then
      ttl = math.min(math.max(1, math.ceil((expires - now) / 1000)), FOREVER)
      record.expires = expires
      more[#more + 1], more[#more + 2] = 'TTL', ttl
    end
    if record.due then
      more[#more + 1], more[#more + 2] = 'DELAY', math.min(delay(tonumber(record.due), now), ttl - 1)
    end
    local job = add(to, cmsgpack.pack(record), withs[to], more)
    local entry = { id = id, job = job, key = key, registry = record.deferred and registry, whose = whose or {}, record = record }
    plan[#plan + 1] = entry
    if job then
      plan[id] = entry
    end
    return entry
  end

  -- kin adds those that wait for a job of the plan, and those that wait for them.
  local function kin(plan, entry)
    if not entry.job then
      return
    end
    local set, list = entry.key .. ':dependents', prefix .. 'deferred:' .. entry.id
    local ids, created, place, hashes = {}, {}, {}, {}
    local function note(id, n)
      hashes[id] = self.read(id)
      if not hashes[id] then
        entry.stale = entry.stale or {}
        entry.stale[#entry.stale + 1] = id
      elseif not place[id] then
        ids[#ids + 1], place[id], created[id] = id, n, hashes[id].created_at or ''
      end
    end
    local listed = typed(list, 'list') and redis.call('LRANGE', list, 0, MOST) or {}
    local waiting = typed(set, 'set') and redis.call('SCARD', set) or 0
    if #plan + #listed + waiting > MOST then
      refuse('ERR more than ' .. MOST .. ' jobs wait for ' .. entry.key)
    end
    for n, id in ipairs(listed) do
      note(id, n)
    end
    for _, id in ipairs(members(set)) do
      note(id, MOST + 1)
    end
    entry.waited = waiting > 0 or #listed > 0
    table.sort(ids, function(a, b)
      if place[a] ~= place[b] then
        return place[a] < place[b]
      elseif created[a] ~= created[b] then
        return created[a] < created[b]
      end
      return a < b
    end)
    for _, id in ipairs(ids) do
      local parents = self.parents(id, hashes[id])
      local named = false
      for _, p in ipairs(parents) do
        named = named or p == entry.id
      end
      if not named then
        parents[#parents + 1] = entry.id
      end
      local waits, whose, missing = self.waits(parents, plan)
      if not plan[id] and not missing then
        local record, words = {}, nil
        if place[id] <= MOST then
          record.list = entry.id
        else
          record.parents = whose
        end
        if #waits == 1 and entry.unreleased then
          words = { 'BLOCKEDBY', waits[1] }
        else
          words = { 'AFTER', unpack(waits) }
          if hashes[id].allow_dependency_failures == '1' then
            words[#words + 1], words[#words + 2] = 'ONDEAD', 'run'
          end
        end
        local e = put(plan, id, hashes[id], record, words, whose)
        e.unreleased = words[1] == 'BLOCKEDBY'
        kin(plan, e)
      end
    end
  end

  -- take moves a job and those that wait for it; how many these are is its item's
  -- kin. Nothing is removed before all are here, and if one can't be, none is.
  function self.take(item, id, hash, record, words, whose)
    local plan = {}
    local ok, why = attempt(function()
      local entry = put(plan, id, hash, record, words, whose)
      entry.unreleased = words[1] == 'DEFERRED'
      kin(plan, entry)
      for _, e in ipairs(plan) do
        if e.waited then
          families.add(e.id, e.job)
        end
        for _, p in ipairs(e.job and e.whose or {}) do
          families.add(p, plan[p] and plan[p].job, e.job)
        end
      end
      for _, e in ipairs(plan) do
        if e.registry then
          redis.call('ZREM', e.registry, e.id)
        end
        for _, p in ipairs(e.job and e.record.parents or {}) do
          if typed(prefix .. 'job:' .. p .. ':dependents', 'set') then
            redis.call('SREM', prefix .. 'job:' .. p .. ':dependents', e.id)
          end
        end
        if e.stale then
          redis.call('SREM', e.key .. ':dependents', unpack(e.stale, 1, math.min(#e.stale, 1000)))
        end
        if e.record.dependencies then
          redis.call('UNLINK', dependencies_of(prefix, e.id))
        end
        redis.call('UNLINK', e.key)
      end
    end)
    if not ok then
      for i = #plan, 1, -1 do
        if plan[i].job then
          redis.call('ACKJOB', plan[i].job)
        end
      end
      refuse(why)
    end
    item.kin = #plan - 1
    return plan[1].job and 'moved' or 'dropped'
  end
  return self
end

-- A set, by one step of a scan, as held_by is one.
local function members_of(key, from, limit)
  redis.call('SREM', key, NOBODYS)
  local found, looked = redis.call('SSCAN', key, from, 'COUNT', limit), 0
  return {
    next = found[1],
    seen = function() return looked == #found[2] end,
    peek = function(n)
      local items = {}
      while looked < #found[2] and #items < n do
        looked = looked + 1
        items[#items + 1] = { body = found[2][looked] }
      end
      return items
    end,
    drop = function(items) redis.call('SREM', key, unpack(field(items, 'body'))) end,
    left = function() return redis.call('SCARD', key) end,
  }
end

-- OVER are the states of jobs that no registry of deferred ones is about any more.
local OVER = { finished = true, failed = true, started = true, canceled = true, stopped = true }

local function rq_import(keys, args)
  local source_key, queue = two(keys, "rq's queue or registry, and jobmesh's queue")
  local o = parse(args, { COUNT = count, FROM = cursor, QUEUE = text, WITH = true })
  local prefix, kind, name = rq_key(source_key)
  local at = redis.call('TYPE', source_key).ok
  options(o, queue)
  redis.call('ACKJOB')
  local function plain(item, jobs)
    local hash = jobs.read(item.body)
    -- Expired, or cancelled: rq's workers pass over such an ID too.
    return hash and jobs.take(item, item.body, hash, { due = item.score, wip = item.score and kind ~= 'scheduled' and kind or nil }, {}) or 'dropped'
  end
  local from = kind == 'deferred' and at ~= 'set' and (natural(o.FROM or '0', 1e15) or place('')) or 0
  if kind ~= 'deferred' then
    local jobs = rq_jobs(o, prefix, name, queue)
    local source = kind == 'queue' and head_of(source_key) or set_of(source_key, 0)
    local t = move(o.COUNT, source, function(item) return plain(item, jobs) end, own_copy)
    jobs.keep()
    return answer(t, source.left(t))
  elseif at == 'set' then
    -- The fork's: of all queues.
    local wanted = o.QUEUE or queue
    local jobs, source = rq_jobs(o, prefix, wanted, queue), members_of(source_key, o.FROM or '0', o.COUNT)
    local t = move(math.huge, source, function(item)
      local id, origin = item.body, nil
      local hash = jobs.read(id)
      if not hash then
        origin, id = string.match(id, '^(.-)%s*|%s*([^|]*)$')
        hash = id and jobs.read(id)
      end
      if not hash then
        return 'dropped'
      elseif (origin or hash.origin or wanted) ~= wanted then
        return 'passed'
      end
      return jobs.take(item, id, hash, { member = item.body }, { 'DEFERRED' })
    end, own_copy)
    jobs.keep()
    if not source.seen() or t.stopped or t.cut then
      return answer(t, math.max(1, source.left()), o.FROM)
    end
    return answer(t, source.next == '0' and 0 or math.max(1, source.left()), source.next)
  elseif at == 'list' then
    -- As the fork's page has it: the jobs that a deferred one blocks.
    local jobs, item = rq_jobs(o, prefix, o.QUEUE or queue, queue), { body = '' }
    local hash = jobs.read(name)
    if not hash then
      refuse('ERR there is no ' .. prefix .. 'job:' .. name .. ', for which these jobs wait')
    end
    redis.call('LTRIM', source_key, 0, -1)
    own_copy()
    local t = { moved = 0, dropped = 0 }
    local verdict = jobs.take(item, name, hash, { list = '' }, { 'DEFERRED' })
    t[verdict] = 1
    t.moved = t.moved + item.kin
    redis.call('UNLINK', source_key)
    jobs.keep()
    return answer(t, 0)
  end
  -- A registry of deferred jobs: most wait for others, and come with these.
  if not name then
    name = o.QUEUE or queue
  end
  local jobs, source = rq_jobs(o, prefix, name, queue), set_of(source_key, from)
  local t = move(o.COUNT, source, function(item)
    local hash = jobs.read(item.body)
    if not hash or OVER[hash.status] then
      return 'dropped'
    end
    local parents = jobs.parents(item.body, hash)
    local waits, whose, missing, gone = jobs.waits(parents, {})
    if missing then
      return 'passed'
    elseif #waits > 0 then
      return jobs.take(item, item.body, hash, { parents = whose }, { 'AFTER', unpack(waits) }, whose)
    end
    return jobs.take(item, item.body, hash, {}, (#parents == 0 or gone) and { 'DEFERRED' } or {})
  end, own_copy)
  jobs.keep()
  return answer(t, source.left(t), string.format('%.0f', from + t.passed))
end

local function unpacked(body)
  local ok, record = pcall(cmsgpack.unpack, body)
  local function is(field, kind, optional)
    return type(record[field]) == kind or optional and record[field] == nil
  end
  local function texts(list)
    for k, v in pairs(list or {}) do
      if type(k) ~= 'number' or type(v) ~= 'string' then
        return false
      end
    end
    return true
  end
  if ok and type(record) == 'table' and is('id', 'string') and is('hash', 'table') and next(record.hash)
    and is('expires', 'number', true) and is('due', 'string', true) and is('wip', 'string', true)
    and is('member', 'string', true) and is('deferred', 'string', true) and is('list', 'string', true)
    and is('parents', 'table', true) and is('dependencies', 'table', true)
    and texts(record.parents) and texts(record.dependencies) then
    return record
  end
end

local function rq_export(keys, args)
  local queue, list = two(keys, "jobmesh's queue, and rq's")
  local o = parse(args, EXPORT)
  local prefix, name = split(list)
  local set, now, families = prefix .. 'scheduled:' .. name, milliseconds(), families_of(prefix)
  redis.call('LTRIM', list, 0, -1)
  redis.call('ZREM', set, NOBODYS)
  -- gather collects a job and those that wait for it, or refuses.
  local function gather(job, all)
    local record = unpacked(job.body)
    if not record then
      refuse('ERR the body of ' .. job.id .. " isn't a job of rq's")
    end
    local entry = { job = job, record = record, key = prefix .. 'job:' .. record.id, over = record.expires and record.expires <= now }
    if not entry.over and redis.call('EXISTS', entry.key) == 1 then
      refuse('ERR ' .. entry.key .. ' exists already')
    end
    all[#all + 1], all[job.id] = entry, true
    local ids = families.get(record.id)
    if ids[1] == job.id then
      entry.known = true
      for i = 2, #ids do
        local kin = not all[ids[i]] and show(ids[i]) or {}
        if kin.state == 'blocked' and #all <= MOST then
          gather(kin, all)
        end
      end
    end
    return all
  end
  local function registry(record)
    return prefix .. 'deferred:' .. (record.hash.origin or name)
  end
  -- What waits goes back to where it waited, all but the queue itself.
  local function write(entry)
    local record, key = entry.record, entry.key
    for f, v in pairs(record.hash) do
      redis.call('HSET', key, f, v)
    end
    if record.expires then
      redis.call('PEXPIREAT', key, string.format('%.0f', record.expires))
    end
    for _, p in ipairs(record.dependencies or {}) do
      redis.call('SADD', dependencies_of(prefix, record.id), p)
    end
    if entry.job.state ~= 'blocked' and entry.job.state ~= 'deferred' then
      return
    end
    for _, p in ipairs(record.parents or {}) do
      redis.call('SADD', prefix .. 'job:' .. p .. ':dependents', record.id)
    end
    if (record.list or '') ~= '' then
      redis.call('RPUSH', prefix .. 'deferred:' .. record.list, record.id)
    end
    if record.member then
      redis.call('SADD', prefix .. 'deferred', record.member)
    end
    if record.deferred then
      redis.call('ZADD', registry(record), record.deferred, record.id)
    end
  end
  -- unwrite takes back what write did beside the hash.
  local function unwrite(entry)
    local record = entry.record
    if record.dependencies then
      redis.call('UNLINK', dependencies_of(prefix, record.id))
    end
    for _, p in ipairs(record.parents or {}) do
      redis.call('SREM', prefix .. 'job:' .. p .. ':dependents', record.id)
    end
    if record.deferred then
      redis.call('ZREM', registry(record), record.id)
    end
    if record.member then
      redis.call('SREM', prefix .. 'deferred', record.member)
    end
    if (record.list or '') ~= '' then
      redis.call('LREM', prefix .. 'deferred:' .. record.list, 1, record.id)
    end
  end
  local function put(job)
    local all = gather(job, {})
    local top = all[1].record
    if job.state == 'deferred' and not (top.member or top.deferred or top.list) then
      return 'passed' -- rq has no place for it
    end
    local at, to = top.due or job.due and string.format('%.0f', math.ceil(job.due / 1000)), set
    if top.wip then
      at, to = job.due and top.due, prefix .. top.wip .. ':' .. name
    end
    local ok, why = attempt(function()
      for _, entry in ipairs(all) do
        if not entry.over then
          write(entry)
        end
      end
      if all[1].over or job.state == 'deferred' then
        return
      end
      redis.call('SADD', prefix .. 'queues', list)
      if at then
        redis.call('ZADD', to, at, top.id)
      else
        redis.call('RPUSH', list, top.id)
      end
    end)
    if not ok then
      for _, entry in ipairs(all) do
        if not entry.over then
          redis.call('UNLINK', entry.key)
          attempt(unwrite, entry)
        end
      end
      refuse(why)
    end
    -- Those that wait go first: the end of what they wait for would queue them.
    for i = #all, 1, -1 do
      if i > 1 then
        redis.call('ACKJOB', all[i].job.id)
      end
      if all[i].known then
        families.forget(all[i].record.id)
      end
    end
    job.kin = #all - 1
    return all[1].over and 'dropped' or 'moved'
  end
  return export(o, queue, put, put, true)
end

local function register(name, work, description, flags)
  redis.register_function{ function_name = 'jobmesh_' .. name, callback = served(work), description = description, flags = flags }
end

register('resque_import', resque_import, "2 resque:queue:NAME queue [COUNT n] [FROM p] [UQ | JOBS] [FORCE] [WITH option ...]")
register('resque_export', resque_export, "2 queue resque:queue:NAME [COUNT n] [FROM p] [ACTIVE] [UNIQUEUE]")
register('sidekiq_import', sidekiq_import, "2 queue:NAME | schedule | retry queue [COUNT n] [FROM p] [QUEUE name] [WITH option ...]")
register('sidekiq_export', sidekiq_export, "2 queue queue:NAME [COUNT n] [FROM p] [ACTIVE]")
register('sidekiq_locks', sidekiq_locks, "1 unicity: [COUNT n] [FROM p]", { 'no-writes' })
register('rq_import', rq_import, "2 rq:queue:NAME | rq:scheduled:NAME | rq:wip:NAME | rq:wipqueue:NAME | rq:deferred | rq:deferred:NAME queue [COUNT n] [FROM p] [QUEUE name] [WITH option ...]")
register('rq_export', rq_export, "2 queue rq:queue:NAME [COUNT n] [FROM p] [ACTIVE]")
