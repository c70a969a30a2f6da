/** The scenario table on every adapter, over memory and PostgreSQL. */
import { afterAll, beforeAll, describe, test } from 'vitest'
import { createOnce } from '../../src/index.ts'
import type { OpenStore } from '../../src/store/conformance/harness.ts'
import type { Adapter } from './adapter.ts'
import { ADAPTERS, STORES } from './everywhere.ts'
import { type Scenario, scenarios, type World } from './scenarios.cases.ts'

for (const [store, harness] of Object.entries(STORES)) {
  describe(`routes on ${store}`, () => {
    let opened: OpenStore<unknown>
    let world: World<unknown>
    beforeAll(async () => {
      opened = await harness.open()
      world = {
        once: createOnce({ store: opened.store }),
        write: (tx, name) => opened.write(tx, name),
        count: (name) => opened.count(name),
        advance: (ms) => opened.advance(ms),
      }
    })
    afterAll(() => opened.close())
    for (const adapter of ADAPTERS) {
      describe(adapter.name, () => {
        for (const one of scenarios) register(one, adapter, () => world)
      })
      describe(`${adapter.name}, gate: first-statement`, () => {
        for (const one of scenarios) register(one, adapter, () => ({ ...world, gate: 'first-statement' }))
      })
    }
  })
}

/** A case that a framework cannot have by its nature is not registered, and the reason is printed. */
function register(one: Scenario, adapter: Adapter, world: () => World<unknown>): void {
  const reason = one.needs === undefined ? undefined : adapter.lacks?.(one.needs)
  if (reason === undefined) test(one.name, () => one.run(adapter, world()))
  else console.log(`not applicable to ${adapter.name}: "${one.name}": ${reason}`)
}
