import { defineConfig, type ViteUserConfig } from 'vitest/config'

/** Tests of a mutant: one PostgreSQL for all runs, no broker, and nobody else to wait for. */
const config: ViteUserConfig = defineConfig({
  test: {
    globalSetup: ['scripts/mutants/server.ts'],
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    // A mutant that makes a test hang has to fail before the runner's bound.
    testTimeout: 20_000,
    hookTimeout: 30_000,
    pool: 'forks',
    maxWorkers: 1,
  },
})

export default config
