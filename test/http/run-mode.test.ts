/** The table of mode `run` on every adapter, over memory and PostgreSQL. */
import { afterAll, beforeAll, describe, test } from 'vitest'
import { createOnce } from '../../src/index.ts'
import type { OpenStore } from '../../src/store/conformance/harness.ts'
import { ADAPTERS, STORES } from './everywhere.ts'
import { runScenarios } from './run-mode.cases.ts'
import type { World } from './scenarios.cases.ts'

for (const [store, harness] of Object.entries(STORES)) {
  describe(`routes of mode run on ${store}`, () => {
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
    describe.each(ADAPTERS)('$name', (adapter) => {
      for (const one of runScenarios) test(one.name, () => one.run(adapter, world))
    })
  })
}
