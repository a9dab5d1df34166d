# Queues as Resque and resque-uniqueue keep them, through the Redis client that
# they use: the three scripts of resque-uniqueue's page, in other words.
require "redis"
require "json"

REDIS = Redis.new(port: ENV.fetch("PORT").to_i)
LIST = "resque:queue:mail"
KEYS = [LIST, "#{LIST}:uniqueue", "#{LIST}:start_at"]

def push(item, time)
  REDIS.sadd("resque:queues", "mail")
  REDIS.eval("if redis.call('SADD', KEYS[2], ARGV[1]) == 0 then return false end
    redis.call('RPUSH', KEYS[3], ARGV[2]) return redis.call('RPUSH', KEYS[1], ARGV[1])", KEYS, [item, time])
end

def pop
  lengths = REDIS.eval("return {redis.call('LLEN', KEYS[1]), redis.call('SCARD', KEYS[2]), redis.call('LLEN', KEYS[3])}", KEYS)
  raise "make sure that the queues are empty: #{lengths}" if lengths.uniq.size > 1
  item, time = REDIS.eval("local item = redis.call('LPOP', KEYS[1]) if not item then return {} end
    redis.call('SREM', KEYS[2], item) return {item, redis.call('LPOP', KEYS[3])}", KEYS)
  item && JSON.parse(item).merge("start_at" => time.to_i)
end

case ARGV.first
when "push"
  50.times { |i| push(JSON.dump("class" => "Mail", "args" => [i, "ünïcode", i / 3.0]), 1370213794 + i) }
  raise "a duplicate is taken" if push(JSON.dump("class" => "Mail", "args" => [7, "ünïcode", 7 / 3.0]), 5)
when "work"
  50.times do |i|
    job = pop
    raise "job #{i}: #{job}" unless job == { "class" => "Mail", "args" => [i, "ünïcode", i / 3.0], "start_at" => 1370213794 + i }
  end
  raise "more jobs than there were" if pop
when "consume"
  50.times do |i|
    item, time = REDIS.call("UQ.POP", "mail")
    raise "item #{i}: #{item} #{time}" unless JSON.parse(item)["args"].first == i && time == 1370213794 + i
  end
end
