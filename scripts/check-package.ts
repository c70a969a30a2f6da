/**
 * Package check, on the tarball that would be published: what is in it, publint, attw, and an installation into an
 * empty folder where every door is imported and type-checked and the command runs. Needs a build; needs no network.
 */
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { doors, manifest } from './doors.ts'

const TARBALL_BYTES_MAX = 1_000_000
const bin = (name: string): string => resolve('node_modules/.bin', name)

/** Runs a program to its end and returns what it printed; its output is part of the error when it fails. */
function run(program: string, args: readonly string[], cwd = '.'): string {
  try {
    return execFileSync(program, args, { cwd, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  } catch (error) {
    const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string }
    throw new Error(`${program} ${args.join(' ')} failed:\n${stdout}${stderr}`, { cause: error })
  }
}

/** Packs a folder and returns the tarball's path. Scripts do not run: the build is already there. */
function pack(source: string, folder: string): string {
  const listed = JSON.parse(run('npm', ['pack', source, '--json', '--ignore-scripts', '--pack-destination', folder])) as
    | { filename: string }[]
    | Record<string, { filename: string }>
  const packed = Object.values(listed)[0]
  if (packed === undefined) throw new Error(`npm pack ${source} made no tarball`)
  return join(folder, packed.filename)
}

function checkContents(tarball: string): void {
  const files = run('tar', ['-tzf', tarball]).trim().split('\n')
  const size = readFileSync(tarball).length
  if (size > TARBALL_BYTES_MAX) throw new Error(`the tarball has ${size} bytes, limit ${TARBALL_BYTES_MAX}`)
  const foreign = files.filter(
    (path) => !/^package\/(dist|sql|docs)\/|^package\/[^/]+\.(md|json)$|^package\/LICENSE$/.test(path),
  )
  if (foreign.length > 0) throw new Error(`not meant for users: ${foreign.join(', ')}`)
  const migrations = readdirSync('sql', { recursive: true, encoding: 'utf8' }).filter((path) => path.endsWith('.sql'))
  for (const path of [
    'README.md',
    'LICENSE',
    'CHANGELOG.md',
    'SECURITY.md',
    // Errors name their page here.
    'docs/errors.md',
    ...migrations.map((file) => `sql/${file}`),
  ]) {
    if (!files.includes(`package/${path}`)) throw new Error(`${path} is not in the tarball`)
  }
  console.log(`${files.length} files, ${Math.round(size / 1024)} kB packed`)
}

/** Compilers of users besides ours; fetched in CI only, so that the check needs no network elsewhere. */
const OTHER_COMPILERS = ['5.9.3', '7.0.2']

/** Types of every door under strict settings without skipLibCheck, in both resolutions that consumers use. */
function checkTypes(consumer: string): void {
  const imports = doors().map(({ specifier }, index) => `import * as door${index} from '${specifier}'`)
  const names = doors().map((_, index) => `door${index}`)
  writeFileSync(join(consumer, 'consumer.ts'), `${imports.join('\n')}\nexport default [${names.join(', ')}]\n`)
  const compilers = process.env['CI'] === 'true' ? OTHER_COMPILERS.map((version) => fetched(version)) : []
  for (const [module, moduleResolution] of [
    ['nodenext', 'nodenext'],
    ['esnext', 'bundler'],
  ]) {
    const compilerOptions = {
      module,
      moduleResolution,
      target: 'es2022',
      strict: true,
      exactOptionalPropertyTypes: true,
      skipLibCheck: false,
      noEmit: true,
      types: ['node'],
      typeRoots: [resolve('node_modules/@types')],
    }
    writeFileSync(join(consumer, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['consumer.ts'] }))
    for (const compiler of [bin('tsc'), ...compilers]) run(compiler, ['-p', consumer])
  }
  const others = compilers.length === 0 ? '' : `, also with TypeScript ${OTHER_COMPILERS.join(' and ')}`
  console.log(`the types of every door compile for nodenext and for bundlers${others}`)
}

/** Path of another TypeScript's compiler, in a folder of its own so that ours stays ours. */
function fetched(version: string): string {
  const own = join(folder, `typescript-${version}`)
  mkdirSync(own)
  writeFileSync(join(own, 'package.json'), '{ "private": true }')
  run('npm', ['install', '--no-audit', '--no-fund', '--prefer-offline', `typescript@${version}`], own)
  return join(own, 'node_modules/.bin/tsc')
}

const folder = mkdtempSync(join(tmpdir(), 'effectively-once-package-'))
try {
  const tarball = pack('.', folder)
  checkContents(tarball)
  run(bin('publint'), ['run', tarball, '--strict'])
  run(bin('attw'), [tarball, '--profile', 'esm-only', '--format', 'ascii'])
  console.log('publint and attw have no complaint')

  const consumer = join(folder, 'consumer')
  mkdirSync(consumer)
  writeFileSync(join(consumer, 'package.json'), JSON.stringify({ name: 'consumer', private: true, type: 'module' }))
  const dependencies = Object.keys(
    (JSON.parse(readFileSync('package.json', 'utf8')) as { dependencies?: Record<string, string> }).dependencies ?? {},
  ).map((name) => pack(`./node_modules/${name}`, folder))
  // What applications with the door nestjs have themselves.
  dependencies.push(...['rxjs', 'tslib'].map((name) => pack(`./node_modules/${name}`, folder)))
  run('npm', ['install', '--offline', '--no-audit', '--no-fund', tarball, ...dependencies], consumer)
  const [command = ''] = Object.keys(manifest().bin)
  const help = run('npx', ['--no-install', command, '--help'], consumer)
  if (!help.includes('migrate')) throw new Error(`${command} --help does not list its commands:\n${help}`)
  checkTypes(consumer)

  // Only the command may need a dependency: every door is imported where there is no other package at all.
  const modules = join(consumer, 'node_modules')
  renameSync(join(modules, 'effectively-once'), join(folder, 'alone'))
  rmSync(modules, { recursive: true })
  mkdirSync(modules)
  renameSync(join(folder, 'alone'), join(modules, 'effectively-once'))
  const alone = doors().filter(({ name }) => name !== './nestjs')
  for (const { specifier } of alone) {
    run(process.execPath, ['--input-type=module', '-e', `await import('${specifier}')`], consumer)
  }
  console.log(`installed alone: ${alone.length} doors import, ${command} --help answers`)
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exitCode = 1
} finally {
  rmSync(folder, { recursive: true, force: true })
}
