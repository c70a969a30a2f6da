/**
 * B76: RabbitMQ 4 drops a message of a quorum queue after 20 deliveries unless the queue dead-letters.
 *
 * AMQP does not tell what kind of queue one consumes from, nor its limit, nor whether a policy dead-letters. What can
 * be known is what was declared through our topology (the broker refuses the declaration when the queue differs),
 * the broker's version, and the count in the headers of a redelivery. So this warns, and says what would settle it.
 *
 * @module
 */

import type { QueueSpec, Topology } from './topology.ts'

/** Since this major version quorum queues have a delivery limit by default. */
const LIMITED_SINCE_MAJOR = 4
/** The default limit of RabbitMQ 4. */
const LIMIT_DEFAULT = 20
/** From this count on, a delivery is a sign that the limit is near. */
const COUNT_NEAR_LIMIT = LIMIT_DEFAULT / 2

/** What is known of what becomes of messages that the broker gives up on. */
export type DeadLetters = 'kept' | 'dropped' | 'unknown'

/** Reads it from the topology. */
export function deadLettersOf(queue: string, topology: Topology): DeadLetters {
  const specs = topology.filter((item): item is QueueSpec => item.kind === 'queue')
  const spec = specs.find((item) => item.name === queue) ?? specs.find((item) => item.deadLetterQueue?.name === queue)
  if (spec === undefined) return 'unknown'
  return spec.arguments['x-dead-letter-exchange'] === undefined ? 'dropped' : 'kept'
}

/** The warning at start, when one is due. */
export function startWarning(queue: string, deadLetters: DeadLetters, version: string | undefined): string | undefined {
  if (deadLetters === 'kept') return undefined
  const major = Number.parseInt(version ?? '', 10)
  if (Number.isNaN(major) || major < LIMITED_SINCE_MAJOR) return undefined
  const what =
    deadLetters === 'dropped'
      ? `queue "${queue}" is declared without dead letters`
      : `nothing says that queue "${queue}" has dead letters`
  return `${what}: RabbitMQ ${version} drops a message of a quorum queue after ${LIMIT_DEFAULT} deliveries. ${REMEDY}`
}

/** The warning after a delivery that was handed out many times before, when one is due. */
export function countWarning(
  queue: string,
  deadLetters: DeadLetters,
  deliveryCount: number | undefined,
): string | undefined {
  if (deadLetters === 'kept' || deliveryCount === undefined || deliveryCount < COUNT_NEAR_LIMIT) return undefined
  return (
    `a message of queue "${queue}" was delivered ${deliveryCount} times before; ` +
    `a quorum queue drops it at its delivery limit. ${REMEDY}`
  )
}

const REMEDY =
  'Declare the queue through topology: [quorumQueue(...)], or dead-letter it by policy and say deadLetters: "configured".'
