// thunk-disque: its README's example with thunks and with promises, and the
// commands that it lists.
'use strict'
const assert = require('assert')
const disque = require('thunk-disque')

const port = Number(process.env.PORT)

// The first half of the README's demo.
const thunks = () => new Promise((resolve, reject) => {
  const client = disque.createClient([port])
  client.on('error', reject)
  client.info()(function (err, info) {
    assert.ifError(err)
    assert.strictEqual(info.registered_jobs, '0')
    assert.strictEqual(info.registered_queues, '0')
    assert.ok(info.disque_version)
    return this.addjob('queueA', 'Hello', 0)
  })(function (err, id) {
    assert.ifError(err)
    return this.show(id)
  })(function (err, job) {
    assert.ifError(err)
    assert.strictEqual(job.queue, 'queueA')
    assert.strictEqual(job.state, 'queued')
    assert.strictEqual(job.body, 'Hello')
    return this.deljob(job.id)
  })(function (err, n) {
    assert.ifError(err)
    assert.strictEqual(n, 1)
    return this.clientEnd()
  })(function (err) {
    if (err) reject(err)
    else resolve()
  })
})

// The second half.
const promises = async () => {
  const client = disque.createClient([port], { usePromise: true })
  const hello = await client.hello()
  assert.deepStrictEqual(hello, [1, hello[1], [hello[1], '', String(port), '1']])

  const id = await client.addjob('queueA', 'Hello', 0, 'RETRY', 10)
  assert.strictEqual(id.slice(2, 10), hello[1].slice(0, 8), 'by which the client finds the node')
  assert.strictEqual((await client.show(id)).retry, 10)
  assert.strictEqual(await client.qlen('queueA'), 1)
  assert.deepStrictEqual(await client.qpeek('queueA', 5), [['queueA', id, 'Hello']])
  assert.strictEqual((await client.qstat('queueA')).len, 1)
  assert.deepStrictEqual(await client.qscan(), ['0', ['queueA']])
  assert.deepStrictEqual(await client.jscan(0, 'QUEUE', 'queueA'), ['0', [id]])
  assert.deepStrictEqual(await client.getjob('TIMEOUT', 1000, 'COUNT', 3, 'FROM', 'queueA'), [['queueA', id, 'Hello']])
  assert.strictEqual(await client.getjob(['NOHANG', 'FROM', 'queueA']), null)
  assert.strictEqual(await client.working(id), 10)
  assert.strictEqual(await client.nack(id), 1)
  assert.strictEqual(await client.dequeue(id), 1)
  assert.strictEqual(await client.enqueue(id), 1)
  assert.strictEqual(await client.pause('queueA', 'in'), 'in')
  await assert.rejects(client.addjob('queueA', 'x', 0), /^PAUSED: Queue paused in input/)
  assert.strictEqual(await client.pause('queueA', 'none'), 'none')
  assert.strictEqual(await client.fastack(id), 1)
  assert.strictEqual(await client.ackjob(id), 0)
  assert.strictEqual(await client.show(id), null)
  await assert.rejects(client.loadjob('x', 'y'), /LOADJOB is a special command/)

  assert.strictEqual(await client.cluster('myid'), hello[1])
  assert.match(await client.cluster('nodes'), new RegExp(`^${hello[1]} :${port} myself 0 0 connected\n$`))
  assert.match(await client.cluster('info'), /^cluster_state:ok\r\n/)
  assert.strictEqual(await client.cluster('leaving'), 'no')
  assert.strictEqual(await client.config('set', 'aof-enqueue-jobs-once', 'yes'), 'OK')
  assert.deepStrictEqual(await client.config('get', 'aof-enqueue-jobs-once'), ['aof-enqueue-jobs-once', 'yes'])
  assert.strictEqual(await client.ping(), 'PONG')
  assert.strictEqual((await client.time()).length, 2)
  assert.ok(Array.isArray(await client.slowlog('get')))
  assert.ok((await client.command()).length > 100)
  await client.addjob('queueA', 'Hello', 0)
  assert.strictEqual(await client.debug('flushall'), 'OK')
  assert.strictEqual(await client.qlen('queueA'), 0)
  client.clientEnd()
}

thunks().then(promises).then(() => {
  console.log('thunk-disque: the README with thunks and promises; hello, info, cluster, config, debug flushall, and all commands on jobs and queues')
}).catch((error) => { console.error(error); process.exit(1) })
