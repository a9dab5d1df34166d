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
