import type { KnipConfig } from 'knip'
import { doors } from './scripts/doors.ts'

/** Dead code. Types are left out: a contract names its parts whether or not somebody imports them by name. */
const config: KnipConfig = {
  entry: [
    ...doors().map(({ source }) => source),
    // Started as processes of their own.
    'src/cli/demo/*-child.ts',
    'src/drill/process/child.ts',
    'test/drill/handlers/*.ts',
    'scripts/*.ts',
    // Read by Vitest in the copies that npm run mutants makes; bundled by npm run soak.
    'scripts/mutants/{vitest.config,server}.ts',
    'scripts/soak/child.ts',
    // Compiled by npm run windows.
    'scripts/windows/paths/entry.ts',
    'bench/**/*.ts',
    'test/processes/**/*.ts',
  ],
  project: ['src/**/*.ts', 'scripts/**/*.ts', 'test/**/*.ts', 'bench/**/*.ts'],
  // Called by name in scripts/check.ts.
  ignoreDependencies: [
    '@arethetypeswrong/cli',
    'dependency-cruiser',
    'publint',
    // Looked up in the user's project, where tsx brings it.
    'esbuild',
    // Loaded by name in test/http/vendors.ts, and what they need themselves.
    'hono',
    '@hono/node-server',
    'koa',
    'express4',
  ],
  ignoreExportsUsedInFile: true,
  exclude: ['types'],
}

export default config
