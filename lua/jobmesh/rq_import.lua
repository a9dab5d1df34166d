local PARENTS = 1000 -- that a job can wait for, at most

-- The jobs of rq's that one namespace has, on their way here.
local function rq_jobs(o, prefix, name, queue)
  local families, now, withs = families_of(prefix), milliseconds(), {}
  local pending = {} -- by IDs: those that wait for a job that isn't here yet
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

  -- Whether a pending job, p, waits for one that isn't here yet. Those that were found
  -- to be here aren't looked for again: each of very many parents comes by here.
  local function waits_on(p, plan)
    while p.at <= #p.parents do
      local id = p.parents[p.at]
      if not (plan[id] and plan[id].job or families.get(id)[1]) then
        local status = redis.call('EXISTS', prefix .. 'job:' .. id) == 1 and (redis.call('HGET', prefix .. 'job:' .. id, 'status') or '')
        if status and status ~= 'finished' then
          return true
        end
      end
      p.at = p.at + 1
    end
    return false
  end

  local function pend(id, hash)
    local p = { hash = hash, parents = self.parents(id, hash), named = {}, at = 1 }
    for _, parent in ipairs(p.parents) do
      p.named[parent] = true
    end
    pending[id] = p
    return p
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
      hashes[id] = pending[id] and pending[id].hash or self.read(id)
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
      local p = pending[id] or pend(id, hashes[id])
      if not p.named[entry.id] then
        p.parents[#p.parents + 1], p.named[entry.id] = entry.id, true
      end
      local comes, waits, whose, missing = not plan[id] and not waits_on(p, plan), nil, nil, nil
      if comes then
        pending[id] = nil
        waits, whose, missing = self.waits(p.parents, plan)
      end
      -- One of too many parents comes with its registry, when enough of them are done.
      if comes and not missing and #waits <= PARENTS then
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

-- Of what import_… take, s is the source: its key, with prefix, kind and name as rq_key
-- tells them, and jobmesh's queue.

-- A queue, or a registry by due times: nobody there waits for another.
local function import_jobs(s, o)
  local jobs = rq_jobs(o, s.prefix, s.name, s.queue)
  local source = s.kind == 'queue' and head_of(s.key) or set_of(s.key, 0)
  local t = move(o.COUNT, source, function(item)
    local hash = jobs.read(item.body)
    -- Expired, or cancelled: rq's workers pass over such an ID too.
    return hash and jobs.take(item, item.body, hash, { due = item.score, wip = item.score and s.kind ~= 'scheduled' and s.kind or nil }, {}) or 'dropped'
  end, own_copy)
  jobs.keep()
  return answer(t, source.left(t))
end

-- The fork's set of deferred jobs, of all queues.
local function import_deferred(s, o)
  local wanted = o.QUEUE or s.queue
  local jobs, source = rq_jobs(o, s.prefix, wanted, s.queue), members_of(s.key, o.FROM or '0', o.COUNT)
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
end

-- A list, as the fork's page has it: the jobs that a deferred one blocks.
local function import_blocked(s, o)
  local jobs, item = rq_jobs(o, s.prefix, o.QUEUE or s.queue, s.queue), { body = '' }
  local hash = jobs.read(s.name)
  if not hash then
    refuse('ERR there is no ' .. s.prefix .. 'job:' .. s.name .. ', for which these jobs wait')
  end
  redis.call('LTRIM', s.key, 0, -1)
  own_copy()
  local t = { moved = 0, dropped = 0 }
  local verdict = jobs.take(item, s.name, hash, { list = '' }, { 'DEFERRED' })
  t[verdict] = 1
  t.moved = t.moved + item.kin
  redis.call('UNLINK', s.key)
  jobs.keep()
  return answer(t, 0)
end

-- A registry of deferred jobs, from a place on: most wait for others, and come with
-- these.
local function import_registry(s, o, from)
  local jobs, source = rq_jobs(o, s.prefix, s.name or o.QUEUE or s.queue, s.queue), set_of(s.key, from)
  local t = move(o.COUNT, source, function(item)
    local hash = jobs.read(item.body)
    if not hash or OVER[hash.status] then
      return 'dropped'
    end
    local parents = jobs.parents(item.body, hash)
    local waits, whose, missing, gone = jobs.waits(parents, {})
    if missing or #waits > PARENTS then
      return 'passed'
    elseif #waits > 0 then
      return jobs.take(item, item.body, hash, { parents = whose }, { 'AFTER', unpack(waits) }, whose)
    end
    return jobs.take(item, item.body, hash, {}, (#parents == 0 or gone) and { 'DEFERRED' } or {})
  end, own_copy)
  jobs.keep()
  return answer(t, source.left(t), string.format('%.0f', from + t.passed))
end

local function rq_import(keys, args)
  local key, queue = two(keys, "rq's queue or registry, and jobmesh's queue")
  local o = parse(args, { COUNT = count, FROM = cursor, QUEUE = text, WITH = true })
  local prefix, kind, name = rq_key(key)
  local s = { key = key, prefix = prefix, kind = kind, name = name, queue = queue }
  local at = redis.call('TYPE', key).ok
  options(o, queue)
  redis.call('ACKJOB')
  if kind ~= 'deferred' then
    return import_jobs(s, o)
  elseif at == 'set' then
    return import_deferred(s, o)
  end
  local from = place(o.FROM or '0')
  if at == 'list' then
    return import_blocked(s, o)
  end
  return import_registry(s, o, from)
end

register('rq_import', rq_import, "2 rq:queue:NAME | rq:scheduled:NAME | rq:wip:NAME | rq:wipqueue:NAME | rq:deferred | rq:deferred:NAME queue [COUNT n] [FROM p] [QUEUE name] [WITH option ...]")
