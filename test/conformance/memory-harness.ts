import type { OpenStore, StoreHarness } from '../../src/store/conformance/harness.ts'
import type { MemoryTx } from '../../src/stores/memory/database.ts'
import { memory } from '../../src/stores/memory/index.ts'

/** The suite's harness over the reference store. */
export const memoryHarness: StoreHarness<MemoryTx> = {
  lacks(need) {
    if (need === 'statement') return 'the memory store has no statements'
    return need === 'own-clock' ? 'the memory store lives by the clock of its process' : undefined
  },
  async open(): Promise<OpenStore<MemoryTx>> {
    const store = memory()
    let written = 0
    return {
      store,
      async write(tx, name) {
        written += 1
        tx.put(`${name}/${written}`, true)
      },
      count: async (name) => [...store.database.data.keys()].filter((key) => key.startsWith(`${name}/`)).length,
      writeStatement: () => ({ text: '' }),
      async transaction(work) {
        const tx = store.begin()
        try {
          const result = await work(tx)
          tx.commit()
          return result
        } catch (error) {
          tx.rollback()
          throw error
        }
      },
      async idleHandle() {
        const tx = store.begin()
        tx.rollback()
        return { tx, close: async () => {} }
      },
      historyIds: async () => store.outbox.history.map((row) => row.id),
      audited: async () => store.outbox.audit,
      async moveToAnotherCluster() {
        store.outbox.ownership.cluster = 'elsewhere'
      },
      advance: async (ms) => store.database.advance(ms),
      close: async () => {},
    }
  },
}
