---- Moving ---------------------------------------------------------------------

-- A source hands items out: peek(n, t) returns the next ones, n at most; drop(items)
-- removes those that were taken; left(t) counts those that are still to be looked at.
-- one(item) gives an item to the target, and returns
--   'moved'
--   'dropped'  it isn't needed there
--   'passed'   it is to stay
--   'unknown'  it stays because it names no job
--   'gone'     it came along with one before it
-- An error ends the batch. The next call meets that item first, and answers the error: so
-- a call that answers an error has changed nothing. fit, if given, is called before each
-- chunk, and raises an error if the target doesn't take it. item.kin is how many more came
-- with the item, item.lost how many of those that belong to it were dropped. Many of them
-- end the batch; t.cut says that this was within a chunk.
local function move(limit, source, one, fit)
  local t = { moved = 0, dropped = 0, passed = 0, gone = 0, kin = 0 }
  local looked, bytes, why = 0, 0, nil
  while looked < limit and bytes < BYTES and t.kin < USUAL and not why do
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
      if verdict == 'unknown' then
        t.unknown = t.unknown or { first = t.passed }
        t.unknown[#t.unknown + 1], verdict = item.body, 'passed'
      end
      t[verdict] = t[verdict] + 1
      bytes = bytes + #item.body
      if verdict ~= 'passed' then
        gone[#gone + 1] = item
      end
      if item.kin then
        t.kin, t.moved, t.dropped = t.kin + item.kin, t.moved + item.kin, t.dropped + (item.lost or 0)
        if t.kin >= USUAL and i < #items then
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

-- Each source begins with a write that changes nothing. So a user who may not take items
-- away, or names a key of another type, gets the error before any item was moved.

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
    has = function(body) return redis.call('ZSCORE', key, body) end,
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
    -- Jobs that are held back for their keys stay while others of their keys run: if there is
    -- no other job, nothing is left to be moved.
    left = function() return #redis.call('QPEEK', queue, 1) > 0 and redis.call('QLEN', queue) or 0 end,
  }
end

-- Whether a job, as SHOW describes it, waits for its due time: the time at which
-- it will be queued is the one that it was given at first.
local function due(job, now)
  local at = job.ctime / 2048 + job.delay * 1000
  local within = job['next-requeue-within']
  if job.delay > 0 and within and math.abs(now + within - at) < 1000 then
    return at
  end
end

-- show returns the fields that SHOW has for a job; none if the job is unknown.
local function show(id)
  local shown, job = redis.call('SHOW', id) or {}, {}
  for i = 1, #shown, 2 do
    job[shown[i]] = shown[i + 1]
  end
  return job
end

-- The other jobs of a queue that one step of a scan finds, with all that SHOW says. The
-- scan goes on at next, but only once all jobs that it found were seen.
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
