/**
 * Builds dist/: declarations file by file, code in few files.
 *
 * A process that imports the core loads two files instead of a hundred, and that is most of what importing costs. What
 * several doors need lies in chunks that they share, so there is one of each class and of each piece of state. The
 * doors of the client are built apart: they are served to browsers as they are.
 *
 * Chunks lie two folders deep, as the sources do that find files beside them by their own address.
 */
import { spawnSync } from 'node:child_process'
import { rmSync } from 'node:fs'
import { rolldown } from 'rolldown'
import { doors, manifest } from './doors.ts'

const CLIENT = 'src/client/'
/** Started as processes of their own, so they need files of their own. */
const CHILDREN = ['src/cli/demo/consumer-child.ts', 'src/cli/demo/relay-child.ts', 'src/drill/process/child.ts']
/** What every door of the server side loads: the core, with its contracts and helpers. */
const CORE = /\/src\/(shared|fingerprint|store|broker|operation|outbox|inbox)\/(?!conformance)|\/src\/once\.ts$/

const sourceOf = (target: string): string => target.replace('./dist/', 'src/').replace(/\.js$/, '.ts')

async function bundle(sources: readonly string[], chunks: string): Promise<void> {
  const build = await rolldown({
    input: Object.fromEntries(sources.map((source) => [source.replace(/^src\/|\.ts$/g, ''), source])),
    // Packages and Node's own modules are the user's.
    external: (id) => !/^[./]/.test(id),
    platform: 'node',
  })
  await build.write({
    dir: 'dist',
    format: 'esm',
    entryFileNames: '[name].js',
    chunkFileNames: `${chunks}/[name].js`,
    codeSplitting: { groups: [{ name: 'core', test: CORE }] },
    minify: false,
  })
  await build.close()
}

rmSync('dist', { recursive: true, force: true })
const { status } = spawnSync('tsc', ['-p', 'tsconfig.build.json'], { stdio: 'inherit' })
if (status !== 0) process.exit(1)
const sources = [...doors().map((door) => door.source), ...Object.values(manifest().bin).map(sourceOf), ...CHILDREN]
await bundle(
  sources.filter((source) => !source.startsWith(CLIENT)),
  'shared/chunks',
)
await bundle(
  sources.filter((source) => source.startsWith(CLIENT)),
  'client/shared',
)
