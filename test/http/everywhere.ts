/** Every adapter and every store that tables of routes run on. */
import type { StoreHarness } from '../../src/store/conformance/harness.ts'
import { memoryHarness } from '../conformance/memory-harness.ts'
import { postgresHarness } from '../conformance/postgres-harness.ts'
import type { Adapter } from './adapter.ts'
import { expressAdapters } from './adapters/express.ts'
import { fastifyAdapter } from './adapters/fastify.ts'
import { fetchAdapter } from './adapters/fetch.ts'
import { honoAdapter } from './adapters/hono.ts'
import { koaAdapter } from './adapters/koa.ts'
import { nestAdapters } from './adapters/nestjs.ts'
import { nodeAdapter } from './adapters/node.ts'

export const ADAPTERS: readonly Adapter[] = [
  nodeAdapter,
  fetchAdapter,
  ...expressAdapters,
  fastifyAdapter,
  honoAdapter,
  koaAdapter,
  ...nestAdapters,
]
export const STORES: Readonly<Record<string, StoreHarness>> = {
  memory: memoryHarness,
  postgres: postgresHarness({ pipeline: true }),
}
