/** The doors of the package: its entry points as package.json `exports` lists them. */
import { readFileSync } from 'node:fs'

export interface Door {
  /** As in `exports`: `.`, `./postgres`. */
  readonly name: string
  /** As imported: `effectively-once/postgres`. */
  readonly specifier: string
  /** Short name for files: `core`, `postgres`. */
  readonly label: string
  readonly types: string
  readonly module: string
  /** The source that it is built from. */
  readonly source: string
}

interface Manifest {
  readonly name: string
  readonly bin: Readonly<Record<string, string>>
  readonly exports: Readonly<Record<string, string | { readonly types: string; readonly default: string }>>
}

export function manifest(): Manifest {
  return JSON.parse(readFileSync('package.json', 'utf8')) as Manifest
}

export function doors(): readonly Door[] {
  const { name: packageName, exports } = manifest()
  return Object.entries(exports).flatMap(([name, target]) =>
    typeof target === 'string'
      ? []
      : [
          {
            name,
            specifier: packageName + name.slice(1),
            label: name === '.' ? 'core' : name.slice(2).replaceAll('/', '-'),
            types: target.types,
            module: target.default,
            source: target.default.replace('./dist/', 'src/').replace(/\.js$/, '.ts'),
          },
        ],
  )
}
