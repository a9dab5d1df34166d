// ioredis: a client for Redis, on the same server. It asks for INFO before it sends anything, and
// HELLO with a version is Redis's for it.
'use strict'
const assert = require('assert')
const Redis = require('ioredis')

const main = async () => {
  const redis = new Redis({ port: Number(process.env.PORT), host: '127.0.0.1', enableReadyCheck: true })
  assert.strictEqual(await redis.set('k', 'v'), 'OK')
  assert.strictEqual(await redis.get('k'), 'v')
  assert.strictEqual(redis.status, 'ready')
  assert.match(await redis.info(), /\r\nredis_version:.*\r\nregistered_jobs:0\r\n/s)
  assert.deepStrictEqual((await redis.call('HELLO', '2')).slice(0, 2), ['server', 'redis'])
  const id = await redis.call('ADDJOB', 'mail', 'welcome ann', 0)
  assert.deepStrictEqual(await redis.call('GETJOB', 'FROM', 'mail'), [['mail', id, 'welcome ann']])
  assert.strictEqual(await redis.call('ACKJOB', id), 1)
  redis.disconnect()
  console.log('ioredis: ready check by INFO, HELLO 2, keys and jobs')
}
main().catch((error) => { console.error(error); process.exit(1) })
