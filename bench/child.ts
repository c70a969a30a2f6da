/**
 * Child: a relay or a consumer as a process of its own. Says `ready`, then on the message `stop` stops and tells the most
 * memory it has held. The loader of this file is part of that figure.
 *
 * @module
 */

import { readFileSync } from 'node:fs'
import amqp from 'amqplib'
import pg from 'pg'
import { applyBatch } from './projection.ts'
import { brokers, core, stores } from './subject.ts'

const [, , role, databaseUrl, amqpUrl, queue = ''] = process.argv
const pool = new pg.Pool({ connectionString: databaseUrl, max: 5, pipeline: true })
const once = core.createOnce({ store: stores.postgres(pool) })
const connect = (): Promise<amqp.ChannelModel> => amqp.connect(amqpUrl ?? '')

const running =
  role === 'relay'
    ? once.relay({ broker: brokers.rabbitmq(connect, { exchange: '' }) })
    : once.consumer({
        name: 'bench',
        source: brokers.rabbitmqQueue(connect, queue, { deadLetters: 'configured' }),
        handleBatch: applyBatch,
        batchMax: 500,
        prefetch: 2_000,
      })
await running.start()
process.send?.({ kind: 'ready' })
process.once('message', () => {
  void running
    .stop()
    .then(() => pool.end())
    .then(() => process.send?.({ kind: 'stopped', peakMiB: peakMiB() }, () => process.exit(0)))
})
process.once('disconnect', () => process.exit(1))

function peakMiB(): number {
  const status = readFileSync('/proc/self/status', 'utf8')
  return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1] ?? process.resourceUsage().maxRSS) / 1_024
}
