/**
 * Compile: turns a drill file and the files around it into one module, once, so that every process of the drill starts
 * as fast as plain JavaScript does.
 *
 * TypeScript goes through esbuild as the tsx of the user's project brings it; packages stay outside and are found from
 * the file that imports them. JavaScript is run as it is, and TypeScript too where Node.js strips types by itself.
 *
 * @module
 */

import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, extname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

/** A module that any process can import. */
export interface Compiled {
  readonly url: string
  /** What it runs; packages are not in it. */
  readonly code: string
  /** SHA-256 over the code, hex. */
  readonly codeHash: string
  /** Removes what was written. */
  remove(): Promise<void>
}

const TYPESCRIPT = new Set(['.ts', '.mts', '.cts', '.tsx'])

/** @throws {TypeError} when the file is missing, or is TypeScript and nothing here can run it. */
export async function compile(path: string): Promise<Compiled> {
  if (!existsSync(path)) throw new TypeError(`${path} does not exist`)
  if (!TYPESCRIPT.has(extname(path))) return asItIs(path)
  const esbuild = await esbuildOf(path)
  if (esbuild !== undefined) return bundled(path, esbuild)
  if ('typescript' in process.features && process.features.typescript !== false) return asItIs(path)
  throw new TypeError(`${path} is TypeScript and tsx was not found beside it; run: npm install --save-dev tsx`)
}

async function asItIs(path: string): Promise<Compiled> {
  return { url: pathToFileURL(path).href, ...(await codeOf(path)), remove: async () => {} }
}

async function bundled(path: string, esbuild: Esbuild): Promise<Compiled> {
  const folder = await mkdtemp(join(tmpdir(), 'effectively-once-drill-'))
  const outfile = join(folder, 'drill.mjs')
  const remove = () => rm(folder, { recursive: true, force: true })
  try {
    await esbuild.build({
      entryPoints: [path],
      outfile,
      bundle: true,
      platform: 'node',
      format: 'esm',
      target: 'node20',
      // Node's own conditions; esbuild would add one for bundlers.
      conditions: [],
      sourcemap: 'inline',
      // Lines and columns; every process reads this.
      sourcesContent: false,
      logLevel: 'silent',
      banner: {
        js: `import { createRequire as drillRequire } from 'node:module'; const require = drillRequire(${JSON.stringify(path)});`,
      },
      plugins: [packagesOutside, ownAddresses],
    })
  } catch (error) {
    await remove()
    throw new TypeError(`${path} could not be compiled: ${error instanceof Error ? error.message : String(error)}`, {
      cause: error,
    })
  }
  return { url: pathToFileURL(outfile).href, ...(await codeOf(outfile)), remove }
}

async function codeOf(path: string): Promise<{ readonly code: string; readonly codeHash: string }> {
  const text = await readFile(path, 'utf8')
  // The map beside the code names folders of this machine.
  const code = text.replace(/\n\/\/# sourceMappingURL=.*\s*$/, '\n')
  return { code, codeHash: createHash('sha256').update(code).digest('hex') }
}

/** Packages are imported by the address at which the importing file finds them. */
const packagesOutside: Plugin = {
  name: 'packages-outside',
  setup(build) {
    build.onResolve({ filter: /^[^./]/ }, async ({ path, kind, resolveDir, pluginData }) => {
      if (pluginData === 'found' || kind === 'entry-point' || path.startsWith('node:')) return undefined
      const found = await build.resolve(path, { kind, resolveDir, pluginData: 'found' })
      if (found.errors.length > 0 || found.external) return { path, external: true }
      // An alias of the project's tsconfig leads to a file of the project.
      if (!found.path.includes('node_modules') && TYPESCRIPT.has(extname(found.path))) return { path: found.path }
      return { path: kind === 'require-call' ? found.path : pathToFileURL(found.path).href, external: true }
    })
  },
}

/** Each file keeps its own `import.meta.url`. */
const ownAddresses: Plugin = {
  name: 'own-addresses',
  setup(build) {
    build.onLoad({ filter: /\.[cm]?[jt]sx?$/ }, async ({ path }) => {
      const text = await readFile(path, 'utf8')
      if (!text.includes('import.meta.')) return undefined
      const contents = text
        .replaceAll(/\bimport\.meta\.url\b/g, JSON.stringify(pathToFileURL(path).href))
        .replaceAll(/\bimport\.meta\.filename\b/g, JSON.stringify(path))
        .replaceAll(/\bimport\.meta\.dirname\b/g, JSON.stringify(dirname(path)))
      return { contents, loader: TYPESCRIPT.has(extname(path)) ? 'ts' : 'js' }
    })
  },
}

interface Plugin {
  readonly name: string
  setup(build: {
    resolve(
      path: string,
      options: { kind: string; resolveDir: string; pluginData: unknown },
    ): Promise<{ path: string; external: boolean; errors: readonly unknown[] }>
    onResolve(
      filter: { filter: RegExp },
      run: (found: {
        path: string
        kind: string
        resolveDir: string
        pluginData: unknown
      }) => Promise<{ path: string; external?: boolean } | undefined>,
    ): void
    onLoad(
      filter: { filter: RegExp },
      run: (file: { path: string }) => Promise<{ contents: string; loader: string } | undefined>,
    ): void
  }): void
}

/** The part of esbuild that is called. */
export interface Esbuild {
  build(options: Readonly<Record<string, unknown>>): Promise<unknown>
}

/** esbuild as tsx of the project at `path` brings it, else the project's own. */
export async function esbuildOf(path: string): Promise<Esbuild | undefined> {
  const fromProject = createRequire(path)
  for (const through of ['tsx/package.json', undefined]) {
    try {
      const require = through === undefined ? fromProject : createRequire(fromProject.resolve(through))
      const module = (await import(pathToFileURL(require.resolve('esbuild')).href)) as { readonly default: Esbuild }
      return module.default
    } catch {
      // The next place.
    }
  }
  return undefined
}
