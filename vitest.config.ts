import { defineConfig, type TestProjectConfiguration, type ViteUserConfig } from 'vitest/config'
import { postgres15 } from './test/services/postgres-15.ts'

const on15 = (postgresBinaries: string): TestProjectConfiguration => ({
  extends: true,
  test: {
    name: 'postgres-15',
    include: [
      'test/conformance/{operation,inbox,outbox,job}.test.ts',
      'test/operation/{explain,in-transaction,outcome,pool,transaction}.test.ts',
      'test/postgres/frozen-step.test.ts',
      'test/torture/guard-{lost-answers,races}.test.ts',
    ],
    provide: { postgresBinaries },
  },
})

const config: ViteUserConfig = defineConfig({
  test: {
    globalSetup: ['test/global-setup.ts'],
    testTimeout: 30_000,
    hookTimeout: 60_000,
    pool: 'forks',
    maxWorkers: 2,
    projects: [
      { extends: true, test: { name: 'all', include: ['src/**/*.test.ts', 'test/**/*.test.ts'] } },
      ...(postgres15 === undefined ? [] : [on15(postgres15)]),
    ],
  },
})

export default config
