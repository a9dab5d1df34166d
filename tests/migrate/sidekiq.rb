# A Sidekiq application: its jobs, and what a developer does with them. Run as
# "sidekiq.rb push", "… requeue", "… consume", and by Sidekiq itself.
require "sidekiq"
require "sidekiq/api"
require "json"

url = { url: "redis://127.0.0.1:#{ENV.fetch("PORT")}/0" }
Sidekiq.configure_client { |c| c.redis = url }
Sidekiq.configure_server do |c|
  c.redis = url
  c.options[:poll_interval_average] = 1
end

class Mail
  include Sidekiq::Worker
  sidekiq_options queue: "mail", retry: 3, tags: ["ünïcode", "a/b"]

  def perform(n, options = {})
    Sidekiq.redis { |r| r.rpush("done", n) }
  end
end

# Its jobs fail until the test makes them succeed.
class Flaky
  include Sidekiq::Worker
  sidekiq_options queue: "mail", retry: 3
  sidekiq_retry_in { 3600 }

  def perform(n)
    Sidekiq.redis do |r|
      raise "not yet" unless r.get("healthy")
      r.rpush("done", n)
    end
  end
end

class Other
  include Sidekiq::Worker
  sidekiq_options queue: "other"

  def perform(n) = nil
end

case ARGV.first
when "flaky"
  5.times { |i| Flaky.perform_async("flaky #{i}") }
when "push"
  40.times { |i| Mail.perform_async("now #{i}", { "html" => "<b>#{i}</b>", "amount" => i / 7.0 }) }
  Sidekiq::Client.push_bulk("class" => Mail, "args" => 20.times.map { |i| ["bulk #{i}"] })
  10.times { |i| Mail.perform_in(3600 + i / 3.0, "later #{i}") }
  5.times { |i| Mail.perform_in(1, "soon #{i}") }
  3.times { |i| Other.perform_in(1800, i) }
when "requeue"
  Sidekiq.redis { |r| r.set("healthy", 1) }
  Sidekiq::ScheduledSet.new.select { |j| j.queue == "mail" }.each(&:add_to_queue)
  Sidekiq::RetrySet.new.each(&:retry)
when "consume"
  # A worker for jobmesh, for the same classes.
  redis = Redis.new(url)
  redis.set("healthy", 1)
  ARGV[1].to_i.times do
    (_, id, body), = redis.call("GETJOB", "TIMEOUT", 5000, "FROM", "mail")
    job = Sidekiq.load_json(body)
    Object.const_get(job["class"]).new.perform(*job["args"])
    redis.call("ACKJOB", id)
  end
end
