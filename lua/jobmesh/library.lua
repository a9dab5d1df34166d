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

-- register makes a function of work(keys, args); every file registers its own.
local function register(name, work, description, flags)
  redis.register_function{ function_name = 'jobmesh_' .. name, callback = served(work), description = description, flags = flags }
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
