/** A job that sends a live key to its provider. The key is put together, as it would be read from a vault. */
import type { DrillFile } from '../../../src/drill/file/format.ts'
import { type FakeProvider, fakeProvider } from '../../../src/testing/provider/index.ts'

const file: DrillFile<FakeProvider> = {
  provider: () => fakeProvider(),
  start({ providerUrl }): () => unknown {
    return () =>
      fetch(`${providerUrl}/v1/charges`, {
        method: 'POST',
        headers: { authorization: `Bearer ${['sk', 'live', '4eC39HqLyjWDarjtT1zdp7dc'].join('_')}` },
        body: '{"amount":1}',
        signal: AbortSignal.timeout(300),
      })
  },
  effects: ({ provider }) => provider.count(),
  settleMs: 500,
}

export default file
