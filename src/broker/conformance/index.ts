/**
 * Conformance suite of the broker contract: what every adapter must do, as data, for any test runner.
 *
 * @example
 * for (const each of brokerConformance) {
 *   const lack = each.needs === undefined ? undefined : harness.lacks(each.needs)
 *   test.skipIf(lack !== undefined)(each.name, () => each.run(harness))
 * }
 *
 * @module
 */

import type { BrokerCase } from './harness.ts'
import { publisherCases } from './publisher.cases.ts'
import { sourceCases } from './source.cases.ts'

export type { BrokerCase, BrokerHarness, BrokerSetup } from './harness.ts'

/** Every case, publisher first. */
export const brokerConformance: readonly BrokerCase[] = [...publisherCases, ...sourceCases]
