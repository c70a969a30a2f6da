/**
 * The broker contract, kept by the in-process broker and by RabbitMQ.
 */
import { describe } from 'vitest'
import { type BrokerHarness, brokerConformance } from '../../src/broker/conformance/index.ts'
import { memoryBroker } from '../../src/brokers/memory/index.ts'
import { amqpUrl } from '../rabbitmq.ts'
import { rabbitHarness } from './rabbitmq-harness.ts'
import { runConformance } from './run.ts'

const memory: BrokerHarness = {
  lacks: () => undefined,
  async open() {
    const payloadBytesMax = 1_000_000
    const broker = memoryBroker({ messageBytesMax: payloadBytesMax })
    let queues = 0
    return {
      broker,
      payloadBytesMax,
      async queue(topics, options = {}) {
        queues += 1
        broker.queue(`queue-${queues}`, { topics, ...options })
        return broker.source(`queue-${queues}`)
      },
      disconnect: async () => broker.disconnect(),
      block: async (on) => (on ? broker.block() : broker.recover()),
      close: async () => {},
    }
  },
}

runConformance(brokerConformance, { 'broker contract on memory': memory })
describe.skipIf(amqpUrl === null)('with a broker', () => {
  runConformance(brokerConformance, { 'broker contract on RabbitMQ': rabbitHarness() })
})
