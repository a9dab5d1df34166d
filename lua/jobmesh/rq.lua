---- rq ----------------------------------------------------------------------------------

-- A body is rq's whole record of the job, packed by MessagePack: id, hash (the
-- fields of rq:job:ID, as they are), and, where it has them, expires (the unix
-- time in ms at which rq's hash would go), due (its score in a registry), wip (the
-- word of that registry, where it isn't the one of scheduled jobs) and entry (its
-- member there, where it isn't the ID); of what waits: member (of the fork's set of
-- deferred jobs) and score (where that is a sorted set), deferred (its score in the
-- registry of these), parents (whose sets of dependents had it), list (whose list
-- of deferred jobs had it) and listed (as what, where it isn't the ID), and
-- dependencies (the set of its own).

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
    local ids = redis.call('HGET', key, id) or own
    if own and string.match(ids, '^%S+') ~= own then
      ids = own -- rq has given the ID again
    end
    redis.call('HSET', key, id, ids .. (kin and ' ' .. kin or ''))
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

-- ask reads a key of rq's. One that holds something else is named: what a job needs
-- beside its hash isn't left behind unread.
local function ask(command, key, ...)
  local ok, reply = attempt(redis.call, command, key, ...)
  if ok then
    return reply
  elseif string.match(reply, '^WRONGTYPE') then
    refuse('WRONGTYPE ' .. key .. " holds a " .. redis.call('TYPE', key).ok .. ", which rq doesn't write there: RENAME or delete it")
  end
  refuse(reply)
end

-- quoted is data in an error's text.
local function quoted(text)
  return "'" .. string.gsub(string.sub(text, 1, 64), '%c', '?') .. "'"
end

-- The set of what a job depends on. rq writes it with two colons.
local function dependencies_of(prefix, id)
  return prefix .. 'job::' .. id .. ':dependencies'
end
