import { expect, inject, test } from 'vitest'
import { DRILL_MS, drillHandler, failed, ofFault } from './verdicts.ts'

test(
  'R48: check then insert is a DUPLICATE when the same comes while the first stands between the two, and nowhere else',
  async () => {
    const result = await drillHandler('check-then-insert')
    expect(failed(result)).toEqual([
      'delivered three times at once: DUPLICATE',
      'delivered twice before sql:2:insert into orders: DUPLICATE',
      'paused beyond the lease before sql:2:insert into orders: DUPLICATE',
    ])
    expect(ofFault(result, 'kill')).toEqual([
      'kill before sql:1:select from orders: one effect',
      'kill after sql:1:select from orders: one effect',
      'kill before sql:2:insert into orders: one effect',
      'kill after sql:2:insert into orders: one effect',
    ])
    // Deaths that leave the same are run once.
    expect(result.windows.filter(({ equalTo }) => equalTo !== undefined).map(({ name }) => name)).toEqual([
      'kill after sql:1:select from orders',
      'kill before sql:2:insert into orders',
    ])
  },
  DRILL_MS,
)

test(
  'R48: a provider called inside a transaction without a key charges twice whenever the transaction does not commit',
  async () => {
    const result = await drillHandler('charge-in-transaction')
    expect(failed(result)).toContain('kill after http:POST /v1/charges: DUPLICATE')
    expect(failed(result)).toContain('time-out after http:POST /v1/charges: DUPLICATE')
    expect(failed(result)).toContain('serialization failure before sql:4:COMMIT: DUPLICATE')
    expect(ofFault(result, 'lost')).toContain('answer lost after sql:4:COMMIT: one effect')
    expect(result.windows.every(({ reached }) => reached)).toBe(true)
  },
  DRILL_MS,
)

test(
  'R48: calls over TLS are windows as those over plain HTTP are, and whom the handler distrusts hears nothing',
  async () => {
    const result = await drillHandler('charge-over-tls')
    expect(ofFault(result, 'none')).toEqual(['no fault: one effect'])
    expect(failed(result)).toContain('kill after http:POST /v1/charges: DUPLICATE')
    expect(failed(result)).toContain('answer lost after http:POST /v1/mails: DUPLICATE')
    expect(failed(result)).toContain('time-out after http:POST /v1/mails: DUPLICATE')
    expect(result.windows.every(({ reached, window: { at } }) => reached || at?.label === 'POST /v1/distrusted')).toBe(
      true,
    )
  },
  DRILL_MS,
)

test(
  'R48: of several deliveries that go wrong without a fault, the two that do are named, and the step that tells them apart',
  async () => {
    const result = await drillHandler('one-pot')
    expect(failed(result)).toEqual(['no fault: LOST', 'delivery 2 behind delivery 1: LOST'])
    expect(result.windows.map(({ name }) => name)).toContain('delivery 3 behind delivery 2')
    const run = result.windows.find(({ name }) => name === 'delivery 2 behind delivery 1')?.run
    expect(run?.events.at(-1)?.text).toBe(
      'here it is sql:insert into done -> INSERT 0 0; alone it is sql:insert into done -> INSERT 0 1',
    )
  },
  DRILL_MS,
)

test.skipIf(inject('amqpUrl') === null)(
  'R48: a message acknowledged in front of its work is LOST with its process',
  async () => {
    expect(failed(await drillHandler('ack-first'))).toEqual([
      'kill after amqp:1:ack: LOST',
      'kill before sql:1:insert into invoices: LOST',
      'connection reset before sql:1:insert into invoices: LOST',
      'deadlock before sql:1:insert into invoices: LOST',
      'PostgreSQL restart before sql:1:insert into invoices: LOST',
    ])
  },
  DRILL_MS,
)

test.skipIf(inject('amqpUrl') === null)(
  'R48: a consumer that acknowledges behind its work, whose repeats change nothing, passes everywhere',
  async () => {
    const result = await drillHandler('ack-last')
    expect(failed(result)).toEqual([])
    expect(result.passed).toBe(true)
  },
  DRILL_MS,
)
