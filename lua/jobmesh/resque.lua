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

-- A queue with its companions: its items have their start times. If forced, only the list
-- counts: start times aren't read, the set loses the items that the list loses, and
-- resque_import removes what is left of the companions when the list is empty.
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
    t = into(o.COUNT, source, queue, o, function(item)
      local id = add(queue, item.body, with)
      if not id then
        return 'dropped'
      elseif item.start then
        along(id, origins.set, id, item.start, now)
      end
      return 'moved'
    end)
    origins.keep()
  end
  local left = source.left()
  if forced and left == 0 then
    t.dropped = t.dropped + redis.call('SCARD', c.set) -- they were in the set alone
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
      start = string.format('%.0f', math.floor(show(job.id).ctime / 2048 / 1000))
    end
    local verdict = put(job.body, start)
    origins.forget(job.id)
    return verdict
  end)
end

register('resque_import', resque_import, "2 resque:queue:NAME queue [COUNT n] [FROM p] [UQ | JOBS] [FORCE] [WITH option ...]")
register('resque_export', resque_export, "2 queue resque:queue:NAME [COUNT n] [FROM p] [ACTIVE] [UNIQUEUE]")
