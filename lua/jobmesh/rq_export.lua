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
    and is('entry', 'string', true) and is('score', 'string', true) and is('listed', 'string', true)
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
    if not entry.over and redis.call('EXISTS', entry.key) == 1 or all[entry.key] then
      refuse('ERR ' .. entry.key .. ' exists already')
    end
    all[#all + 1], all[job.id], all[entry.key] = entry, true, true
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
  -- write writes a job's hash. A job that waits for others, or for its release, also goes back
  -- to where it waited. put writes the entry in the queue.
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
      redis.call('RPUSH', prefix .. 'deferred:' .. record.list, record.listed or record.id)
    end
    if record.score then
      redis.call('ZADD', prefix .. 'deferred', record.score, record.member)
    elseif record.member then
      redis.call('SADD', prefix .. 'deferred', record.member)
    end
    if record.deferred then
      redis.call('ZADD', registry(record), record.deferred, record.id)
    end
  end
  -- unwrite takes back what write did, except the hash.
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
      redis.call(record.score and 'ZREM' or 'SREM', prefix .. 'deferred', record.member)
    end
    if (record.list or '') ~= '' then
      redis.call('LREM', prefix .. 'deferred:' .. record.list, -1, record.listed or record.id)
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
        redis.call('ZADD', to, at, to ~= set and top.entry or top.id)
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
    -- The jobs that wait are acknowledged first: the end of the job that they wait for would
    -- queue them.
    job.kin, job.lost = 0, 0
    for i = #all, 1, -1 do
      if i > 1 then
        redis.call('ACKJOB', all[i].job.id)
        local fate = all[i].over and 'lost' or 'kin'
        job[fate] = job[fate] + 1
      end
      if all[i].known then
        families.forget(all[i].record.id)
      end
    end
    return all[1].over and 'dropped' or 'moved'
  end
  return export(o, queue, put, put, true)
end

register('rq_export', rq_export, "2 queue rq:queue:NAME [COUNT n] [FROM p] [ACTIVE]")
