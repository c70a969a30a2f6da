/**
 * Tree: a copy of the sources in which one file at a time is broken. Files are hard links, so a copy costs no space; a
 * changed one is a new file, so the sources themselves stay as they are.
 */
import {
  copyFileSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import type { Mutant } from './mutant.ts'

const PARTS = ['src', 'sql', 'test', 'scripts', 'examples', 'package.json', 'tsconfig.json']

export class Tree {
  readonly root: string = mkdtempSync(join(tmpdir(), 'effectively-once-mutants-'))
  readonly #from: string

  constructor(from: string) {
    this.#from = from
    for (const part of PARTS) this.#link(part)
    symlinkSync(join(from, 'node_modules'), join(this.root, 'node_modules'))
  }

  /** Breaks one file. @throws when the mutant's text is not there exactly once. */
  apply({ file, find, replace }: Mutant): void {
    const text = readFileSync(join(this.#from, file), 'utf8')
    const times = text.split(find).length - 1
    if (times !== 1) throw new Error(`stale: its text is ${times} times in ${file}`)
    this.#replace(file)
    writeFileSync(
      join(this.root, file),
      text.replace(find, () => replace),
    )
  }

  restore({ file }: Mutant): void {
    this.#replace(file)
    linkOrCopy(join(this.#from, file), join(this.root, file))
  }

  remove(): void {
    rmSync(this.root, { recursive: true, force: true, maxRetries: 5 })
  }

  #replace(file: string): void {
    rmSync(join(this.root, file), { force: true })
  }

  #link(part: string): void {
    const entries = readdirSync(this.#from, { withFileTypes: true }).find(({ name }) => name === part)
    const files = entries?.isDirectory() === true ? filesOf(this.#from, part) : [part]
    for (const file of files) {
      mkdirSync(dirname(join(this.root, file)), { recursive: true })
      linkOrCopy(join(this.#from, file), join(this.root, file))
    }
  }
}

function filesOf(root: string, folder: string): readonly string[] {
  return readdirSync(join(root, folder), { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && !entry.parentPath.includes('node_modules'))
    .map((entry) => join(entry.parentPath, entry.name).slice(root.length + 1))
}

/** Another file system takes no links. */
function linkOrCopy(from: string, to: string): void {
  try {
    linkSync(from, to)
  } catch {
    copyFileSync(from, to)
  }
}
