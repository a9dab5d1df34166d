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

-- The number of words that follow an option of ADDJOB, where it isn't one.
local BEHIND = { ASYNC = 0, DEFERRED = 0 }

-- said maps each option in a list of ADDJOB's options to the word behind it, in lower case.
local function said(with)
  local o, i = {}, 1
  while i <= #with do
    local name, value = string.upper(with[i]), string.lower(with[i + 1] or '')
    o[name] = value
    local choice = name == 'ONCONFLICT' or name == 'ONBUSY'
    i = i + 1 + (BEHIND[name] or choice and (value == 'reschedule' or value == 'debounce') and 2 or 1)
  end
  return o
end

-- alone says whether there are no other nodes: with others, locks have to be agreed on.
local function alone()
  return string.find(redis.call('INFO', 'jobmesh'), 'jobmesh_known_nodes:1\r', 1, true) ~= nil
end

local function no_quorum(whose)
  refuse("NOQUORUM " .. whose .. " has to be agreed on with the other nodes of the mesh, for which a function can't wait: move the queue"
    .. " before the node meets others, or WITH UNIQUE none")
end

-- options returns the options of ADDJOB for every job of an import, and the strategy of
-- UNIQUE if WITH names one. ADDJOB's answer must tell a new job from another that has
-- its key.
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
  elseif conflict == 'replace' or conflict == 'debounce' then
    refuse('ERR ONCONFLICT ' .. conflict .. ' is not for moving, since it would take one job for another: give WITH ONCONFLICT drop, raise or reschedule')
  elseif not alone() then
    no_quorum('the lock of a unique job')
  elseif conflict == 'return' then
    with = { unpack(with) }
    with[#with + 1], with[#with + 2] = 'ONCONFLICT', 'drop'
  end
  return with, own.UNIQUE
end

-- own_copy refuses if the node doesn't keep the jobs that it is given. A node that is
-- leaving or short of memory gives them to others, and a script can't wait until those
-- hold them: until then nobody would answer for the jobs.
local function own_copy()
  local info = redis.call('INFO', 'jobmesh')
  if string.find(info, 'jobmesh_leaving:yes', 1, true) then
    refuse('LEAVING this node is leaving the mesh, and keeps no jobs: move the queue on another node')
  elseif not string.find(info, 'jobmesh_memory_level:0', 1, true) then
    refuse('OOM this node is above 75 % of maxmemory, and keeps no jobs that it is given')
  end
end

-- checked refuses options that ADDJOB refuses. It adds no job: the job would have to wait
-- for one that can't exist, so ADDJOB refuses it in the end. AFTER stands before the
-- options, since the last option may lack its value. BLOCKEDBY stands behind them, since
-- the last of several counts.
local NONE = 'D-00000000-AAAAAAAAAAAAAAAAAAAAAAAA-05a1'
local function checked(queue, with)
  local own, why = said(with), nil
  if not own.AFTER and (own.BLOCKEDBY or own.ONDEAD) then
    why = select(2, attempt(add, queue, '', with, { 'BLOCKEDBY', NONE }))
  else
    why = select(2, attempt(add, queue, '', { 'AFTER', NONE }, with))
  end
  if not string.find(why, NONE, 1, true) then
    refuse(why)
  end
end

-- into is move into a queue of jobs. The options are checked even if no job was added.
local function into(limit, source, queue, o, one)
  local t = move(limit, source, one, own_copy)
  if #o.WITH > 0 and t.moved + t.dropped == 0 then
    checked(queue, o.WITH)
  end
  return t
end

-- along does the work that goes with a job that was just added. If the work fails, the job
-- is taken back by ACKJOB. So an import that uses along calls ACKJOB before its first
-- change, to learn whether the user may.
local function along(id, work, ...)
  local ok, why = attempt(work, ...)
  if not ok then
    redis.call('ACKJOB', id)
    refuse(why)
  end
end

-- The seconds until a due time, rounded up, so that no job comes too early.
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
    -- Called at the end of an import: if it has set origins, the key lapses after the last of them.
    keep = function()
      if last > 0 then
        local at = string.format('%.0f', last + KEPT)
        redis.call('EXPIREAT', key, at, 'NX')
        redis.call('EXPIREAT', key, at, 'GT')
      end
    end,
  }
end
