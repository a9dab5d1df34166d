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
