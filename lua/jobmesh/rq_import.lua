local PARENTS = 1000 -- that a job can wait for, at most

-- OVER are the states of jobs that wait for nothing any more, whatever still names them.
local OVER = { finished = true, failed = true, started = true, canceled = true, stopped = true }

-- rq_jobs has what imports need to take over the jobs of one namespace of rq's.
local function rq_jobs(o, prefix, name, queue)
  local families, now, withs = families_of(prefix), milliseconds(), {}
  local pending = {} -- by IDs: those that wait for a job that isn't here yet
  local nobody = prefix .. 'job:' .. NOBODYS
  redis.call('UNLINK', nobody)
  redis.call('SREM', nobody, NOBODYS)
  redis.call('ZREM', nobody, NOBODYS)
  local all = prefix .. 'deferred' -- the fork's key of all deferred jobs
  local all_kind = redis.call('TYPE', all).ok
  local self = { keep = families.keep }

  function self.read(id)
    local flat, hash = ask('HGETALL', prefix .. 'job:' .. id), {}
    for i = 1, #flat, 2 do
      hash[flat[i]] = flat[i + 1]
    end
    return #flat > 0 and hash or nil
  end

  -- find returns the job that an entry of a key names: its ID and fields, and its queue if
  -- the entry says it. The fork writes 'queue|ID', 'queue | ID' or 'queue/ID'. Newer releases
  -- of rq write 'ID:execution' for running jobs, all others the ID alone. If a queue's name
  -- has slashes, the reading counts that agrees with the job's origin, else the first one.
  -- find returns nothing if there is no such job. It refuses an entry that has a job's ID in
  -- yet another form, so that this job isn't left behind unnoticed.
  function self.find(entry, key)
    local hash = self.read(entry)
    if hash then
      return entry, hash
    end
    local id, of
    local at = string.find(entry, '[|/]')
    while at do
      local queue, rest = string.match(string.sub(entry, 1, at - 1), '^(.-)%s*$'), string.match(string.sub(entry, at + 1), '^%s*(.*)$')
      local found = self.read(rest)
      if found and (not id or found.origin == queue) then
        id, hash, of = rest, found, queue
      end
      at = not (found and found.origin == queue) and string.find(entry, '[|/]', at + 1)
    end
    if id then
      return id, hash, of ~= '' and of or nil
    end
    local run = string.match(entry, '^(.+):[^:]+$')
    hash = run and self.read(run)
    if hash then
      return run, hash
    end
    for word in string.gmatch(entry, '[^%s|/:,;"\'%[%]]+') do
      if redis.call('EXISTS', prefix .. 'job:' .. word) == 1 then
        refuse('ERR ' .. key .. ' has the entry ' .. quoted(entry) .. ', a form that is not known, for ' .. prefix .. 'job:' .. word
          .. ": write the job's ID in its place")
      end
    end
  end

  function self.parents(id, hash)
    local ids = ask('SMEMBERS', dependencies_of(prefix, id))
    if #ids == 0 and (hash.dependency_ids or '') ~= '' then
      local ok, list = pcall(cjson.decode, hash.dependency_ids)
      local odd = not ok or type(list) ~= 'table' and list ~= cjson.null
      for k, p in pairs(type(list) == 'table' and list or {}) do
        odd = odd or type(k) ~= 'number' or type(p) ~= 'string'
        ids[#ids + 1] = p
      end
      if odd then
        refuse('ERR dependency_ids of ' .. prefix .. 'job:' .. id .. " isn't a list of IDs, so that nobody can say what the job waits for: correct it")
      end
    end
    if #ids == 0 and (hash.dependency_id or '') ~= '' then
      ids[1] = hash.dependency_id
    end
    return ids
  end

  local function status_of(id)
    local key = prefix .. 'job:' .. id
    return redis.call('EXISTS', key) == 1 and (ask('HGET', key, 'status') or '')
  end

  -- waits tells what a job waits for. It returns the IDs of those jobs that are here, and
  -- rq's IDs of them; whether one isn't here yet; whether one has gone without a trace; and
  -- whether the only one is held back itself. plan has the jobs that come in this step.
  function self.waits(parents, plan)
    local ids, whose, missing, gone, held = {}, {}, false, false, false
    for _, p in ipairs(parents) do
      local id = plan[p] and plan[p].job or families.get(p)[1]
      local state = id and show(id).state
      if state and state ~= 'acked' then
        ids[#ids + 1], whose[#whose + 1] = id, p
        held = state == 'deferred'
      elseif not id then
        local status = status_of(p)
        gone = gone or not status
        missing = missing or status and status ~= 'finished'
      end
    end
    return ids, whose, missing, gone, held and #ids == 1
  end

  -- Whether a pending job, p, waits for one that isn't here yet. p.at passes the parents
  -- that were found to be here, so that they aren't looked for again: with very many parents
  -- this is called for each of them.
  local function waits_on(p, plan)
    while p.at <= #p.parents do
      local id = p.parents[p.at]
      if not (plan[id] and plan[id].job or families.get(id)[1]) then
        local status = status_of(id)
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

  -- member returns how the fork's key of all deferred jobs names a job, and the job's score
  -- if the key is a sorted set.
  local function member(id, ...)
    if all_kind ~= 'set' and all_kind ~= 'zset' then
      return
    end
    local forms = { id }
    for _, queue in ipairs({ ... }) do
      for _, between in ipairs({ '|', ' | ', '/' }) do
        forms[#forms + 1] = queue .. between .. id
      end
    end
    for _, form in ipairs(forms) do
      local there = redis.call(all_kind == 'set' and 'SISMEMBER' or 'ZSCORE', all, form)
      if there and there ~= 0 then
        return form, all_kind == 'zset' and there or nil
      end
    end
  end

  -- put adds a job as a part of a plan. If ADDJOB drops the job, its entry in the plan has no
  -- job. record: what its body has beside the usual; words: options of ADDJOB; of: its queue,
  -- where that isn't its origin.
  local function put(plan, id, hash, record, words, whose, of)
    local key, to = prefix .. 'job:' .. id, of or hash.origin
    if not to or to == '' or to == name then
      to = queue
    end
    withs[to] = withs[to] or options(o, to)
    record.id, record.hash = id, hash
    local dependencies, registry = ask('SMEMBERS', dependencies_of(prefix, id)), prefix .. 'deferred:' .. (hash.origin or name)
    if #dependencies > 0 then
      record.dependencies = dependencies
    end
    if typed(registry, 'zset') then
      record.deferred = redis.call('ZSCORE', registry, id) or record.deferred
    end
    if #words > 0 and not record.member then
      record.member, record.score = member(id, hash.origin or name, of)
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
    plan[#plan + 1], plan.has[id] = entry, entry
    if job then
      plan[id] = entry
    end
    return entry
  end

  -- with_dependents returns the keys in which rq says who waits for a job: a set and its
  -- size, and a list and its entries.
  local function with_dependents(entry)
    local set, list = entry.key .. ':dependents', prefix .. 'deferred:' .. entry.id
    -- The registry of a queue that is named like the job isn't the job's.
    local listed = typed(list, 'list') and redis.call('LRANGE', list, 0, MOST) or {}
    return set, ask('SCARD', set), list, listed
  end

  -- known collects the jobs that wait for a job, in the order in which they are to follow it:
  -- first those of the list, then those of the set by their age. An entry that is there
  -- twice, or whose job is over, is counted as lost.
  local function known(entry, set, list, listed)
    local children, by = {}, {}
    local function note(text, key, n)
      local id, hash, of = text, pending[text] and pending[text].hash, nil
      if not hash then
        id, hash, of = self.find(text, key)
      end
      if hash and (OVER[hash.status] or by[id] and by[id][key]) then
        entry.lost = entry.lost + 1
        return hash, nil
      elseif hash and not by[id] then
        by[id] = { id = id, hash = hash, of = of, text = text, place = n, created = hash.created_at or '' }
        children[#children + 1] = by[id]
      end
      if hash then
        by[id][key] = true
      end
      return hash, id
    end
    for n, text in ipairs(listed) do
      if not note(text, list, n) then
        refuse('NOJOB ' .. list .. ' has the entry ' .. quoted(text) .. ', and that job is not there: LREM the entry if the job is over')
      end
    end
    entry.members = {}
    for _, text in ipairs(redis.call('SMEMBERS', set)) do
      local hash, id = note(text, set)
      if id and hash then
        entry.members[id] = text
      else
        entry.stale[#entry.stale + 1] = text
        entry.lost = entry.lost + (hash and 0 or 1)
      end
    end
    table.sort(children, function(a, b)
      if a.place or b.place then
        return (a.place or math.huge) < (b.place or math.huge)
      elseif a.created ~= b.created then
        return a.created < b.created
      end
      return a.id < b.id
    end)
    return children
  end

  local kin

  -- come adds a job that waits for one of the plan, and those that wait for it in turn. It
  -- adds none if the job has to wait for others that aren't here yet. A job with too many
  -- parents comes with its registry, when enough of them are done.
  local function come(plan, entry, child)
    local id = child.id
    local p = pending[id] or pend(id, child.hash)
    if not p.named[entry.id] then
      p.parents[#p.parents + 1], p.named[entry.id] = entry.id, true
    end
    if waits_on(p, plan) then
      return false
    end
    local waits, whose, missing = self.waits(p.parents, plan)
    if missing or #waits > PARENTS then
      return false
    end
    pending[id] = nil
    local record, words = {}, nil
    if child.place then
      record.list, record.listed, record.parents = entry.id, child.text ~= id and child.text or nil, {}
      for _, parent in ipairs(whose) do
        if ask('SISMEMBER', prefix .. 'job:' .. parent .. ':dependents', id) == 1 then
          record.parents[#record.parents + 1] = parent
        end
      end
    else
      record.parents = whose
    end
    if #waits == 1 and entry.unreleased then
      words = { 'BLOCKEDBY', waits[1] }
    else
      words = { 'AFTER', unpack(waits) }
      if child.hash.allow_dependency_failures == '1' then
        words[#words + 1], words[#words + 2] = 'ONDEAD', 'run'
      end
    end
    local e = put(plan, id, child.hash, record, words, whose, child.of)
    e.unreleased = words[1] == 'BLOCKEDBY'
    kin(plan, e)
    return true
  end

  -- kin adds the jobs that wait for a job of the plan, and those that wait for them. The jobs
  -- of a list come all at once, since perhaps nothing else says which job blocks them.
  kin = function(plan, entry)
    local set, waiting, list, listed = with_dependents(entry)
    entry.lost, entry.stale, entry.waited = 0, {}, waiting + #listed > 0
    -- The plan has the job itself, too.
    if #plan - 1 + #listed + waiting > MOST then
      refuse('ERR more than ' .. MOST .. ' jobs wait for ' .. entry.key)
    elseif not entry.job and entry.waited then
      refuse('DUPLICATE ' .. entry.key .. ' has the key of another job, and others wait for it: import it WITH UNIQUE none')
    elseif not entry.waited then
      return
    end
    entry.list = #listed > 0 and list
    local left = known(entry, set, list, listed)
    local before
    repeat
      before = #left
      local later = {}
      for _, child in ipairs(left) do
        if not plan.has[child.id] and not come(plan, entry, child) then
          later[#later + 1] = child
        end
      end
      left = later
    until #left == 0 or #left == before or not left[1].place
    if left[1] and left[1].place then
      refuse('ERR ' .. prefix .. 'job:' .. left[1].id .. ' is in ' .. list .. ', and waits for other jobs that are not here: import these first')
    end
  end

  -- cleared removes from rq's keys what a plan has brought, the hashes last: until then
  -- all that names them is there.
  local function cleared(plan)
    for _, e in ipairs(plan) do
      if e.registry then
        redis.call('ZREM', e.registry, e.id)
      end
      if e.record.member then
        redis.call(all_kind == 'set' and 'SREM' or 'ZREM', all, e.record.member)
      end
      for _, p in ipairs(e.record.parents or {}) do
        if typed(prefix .. 'job:' .. p .. ':dependents', 'set') then
          redis.call('SREM', prefix .. 'job:' .. p .. ':dependents', plan.has[p] and plan.has[p].members and plan.has[p].members[e.id] or e.id)
        end
      end
      for first = 1, #e.stale, PARENTS do
        redis.call('SREM', e.key .. ':dependents', unpack(e.stale, first, math.min(#e.stale, first + PARENTS - 1)))
      end
      if e.list then
        redis.call('UNLINK', e.list)
      end
      if e.record.dependencies then
        redis.call('UNLINK', dependencies_of(prefix, e.id))
      end
    end
    for _, e in ipairs(plan) do
      redis.call('UNLINK', e.key)
    end
  end

  -- take moves a job and those that wait for it. item.kin becomes the number of these, and
  -- item.lost the number of their entries that were dropped. Nothing is removed before all
  -- are here. If one can't be added, none is.
  function self.take(item, id, hash, record, words, whose, of)
    local plan = { has = {} }
    local ok, why = attempt(function()
      local entry = put(plan, id, hash, record, words, whose, of)
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
      cleared(plan)
    end)
    if not ok then
      for i = #plan, 1, -1 do
        if plan[i].job then
          redis.call('ACKJOB', plan[i].job)
        end
      end
      refuse(why)
    end
    item.kin, item.lost = 0, 0
    for i, e in ipairs(plan) do
      item.lost = item.lost + e.lost + (i > 1 and not e.job and 1 or 0)
      item.kin = item.kin + (i > 1 and e.job and 1 or 0)
    end
    return plan[1].job and 'moved' or 'dropped'
  end
  return self
end

-- The items of a set that one step of a scan finds, as a source like held_by.
local function members_of(key, from, limit)
  redis.call('SREM', key, NOBODYS)
  local found, looked = redis.call('SSCAN', key, from, 'COUNT', limit), 0
  return {
    steps = true,
    next = found[1],
    has = function(body) return redis.call('SISMEMBER', key, body) == 1 end,
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

-- The functions import_… take s, the source: its key; prefix, kind and name, as rq_key
-- tells them; and jobmesh's queue.

-- A queue, or a registry by due times. No job there waits for another.
local function import_jobs(s, o)
  local jobs = rq_jobs(o, s.prefix, s.name, s.queue)
  local source = s.kind == 'queue' and head_of(s.key) or set_of(s.key, 0)
  local wip = s.kind ~= 'queue' and s.kind ~= 'scheduled' and s.kind or nil
  local t = into(o.COUNT, source, s.queue, o, function(item)
    local id, hash = jobs.find(item.body, s.key)
    if not hash then
      return 'dropped' -- expired, or cancelled: rq's workers pass over such an ID too
    end
    return jobs.take(item, id, hash, { due = item.score, wip = wip, entry = wip and id ~= item.body and item.body or nil }, {})
  end)
  jobs.keep()
  return t, source.left(t)
end

-- The deferred jobs of a set or a sorted set: the fork's of all queues, or that of one
-- queue. A job that waits for others comes with them, or when they are here. A job of the
-- fork's key that waits for none any more is deferred: somebody has to release it.
local function import_deferred(s, o, source)
  local wanted = s.name or o.QUEUE or s.queue
  local jobs = rq_jobs(o, s.prefix, wanted, s.queue)
  local t = into(source.steps and math.huge or o.COUNT, source, s.queue, o, function(item)
    local id, hash, of = jobs.find(item.body, s.key)
    if not hash then
      return source.has(item.body) and 'unknown' or 'gone' -- with one that it waited for
    elseif not s.name and (of or hash.origin or wanted) ~= wanted then
      return 'passed'
    elseif OVER[hash.status] then
      return 'dropped'
    end
    local parents = jobs.parents(id, hash)
    local waits, whose, missing, gone, held = jobs.waits(parents, {})
    local record, words = {}, {}
    if missing or #waits > PARENTS then
      return 'passed'
    elseif held then
      words = { 'BLOCKEDBY', waits[1] }
    elseif #waits > 0 then
      words = { 'AFTER', unpack(waits) }
    elseif #parents == 0 or gone or not s.name then
      words = { 'DEFERRED' }
    end
    if #waits > 0 then
      record.parents = whose
    end
    if s.name and item.score then
      record.deferred = item.score
    else
      record.member, record.score = item.body, item.score
    end
    return jobs.take(item, id, hash, record, words, whose, of)
  end)
  jobs.keep()
  if t.unknown and t.moved + t.dropped == 0 then
    local few = {}
    for i = 1, math.min(#t.unknown, 5) do
      few[i] = quoted(t.unknown[i])
    end
    refuse('NOJOB ' .. s.key .. ' names jobs that are not there, by ' .. table.concat(few, ', ') .. (#t.unknown > 5 and ' and others' or '')
      .. ': ' .. (source.steps and 'SREM' or 'ZREM') .. ' these entries if the jobs are over')
  end
  return t
end

-- A list, as the fork's page has it: the jobs that a deferred one blocks.
local function import_blocked(s, o)
  local jobs, item = rq_jobs(o, s.prefix, o.QUEUE or s.queue, s.queue), { body = '' }
  local hash = jobs.read(s.name)
  if not hash then
    refuse('ERR there is no ' .. s.prefix .. 'job:' .. s.name .. ', for which these jobs wait')
  elseif (hash.status or 'deferred') ~= 'deferred' then
    refuse('ERR ' .. s.prefix .. 'job:' .. s.name .. ' is not deferred but ' .. quoted(hash.status) .. ': import it from where it is, and these jobs come with it')
  end
  redis.call('LTRIM', s.key, 0, -1)
  own_copy()
  local t = { moved = 0, dropped = 0 }
  local verdict = jobs.take(item, s.name, hash, { list = '' }, { 'DEFERRED' })
  t[verdict] = 1
  t.moved, t.dropped = t.moved + item.kin, t.dropped + item.lost
  jobs.keep()
  return t
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
    return answer(import_jobs(s, o))
  elseif at == 'set' then
    local from = o.FROM or '0'
    local source = members_of(key, from, o.COUNT)
    local t = import_deferred(s, o, source)
    if t.unknown or not source.seen() or t.stopped or t.cut then
      return answer(t, math.max(1, source.left()), from)
    end
    return answer(t, source.next == '0' and 0 or math.max(1, source.left()), source.next)
  end
  local from = place(o.FROM or '0')
  if at == 'list' and name then
    return answer(import_blocked(s, o), 0)
  end
  local source = set_of(key, from)
  local t = import_deferred(s, o, source)
  if t.unknown then
    t.passed = t.unknown.first -- the next call begins with them, and names them
  elseif t.kin > 0 and from + t.passed > 0 then
    from, t.passed = 0, 0 -- those that came along may have stood before it: the walk begins anew
    source = set_of(key, from)
  end
  return answer(t, source.left(t), string.format('%.0f', from + t.passed))
end

register('rq_import', rq_import, "2 rq:queue:NAME | rq:scheduled:NAME | rq:wip:NAME | rq:wipqueue:NAME | rq:deferred | rq:deferred:NAME queue [COUNT n] [FROM p] [QUEUE name] [WITH option ...]")
