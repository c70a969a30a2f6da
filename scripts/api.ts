/**
 * API reports: what each door exports, as text in api/, reviewed like code.
 *
 * `npm run api` writes them; with `--check` a difference is an error. Needs a build.
 */
import { existsSync, mkdirSync, readdirSync, rmSync } from 'node:fs'
import { resolve } from 'node:path'
import { Extractor, ExtractorConfig, ExtractorLogLevel } from '@microsoft/api-extractor'
import { doors } from './doors.ts'

const check = process.argv.includes('--check')
const reportFolder = resolve('api')
mkdirSync(reportFolder, { recursive: true })

const problems: string[] = []
for (const door of doors()) {
  const types = resolve(door.types)
  if (!existsSync(types)) {
    problems.push(`${door.specifier}: ${door.types} is not built`)
    continue
  }
  const config = ExtractorConfig.prepare({
    configObject: {
      projectFolder: resolve('.'),
      mainEntryPointFilePath: types,
      compiler: { tsconfigFilePath: resolve('tsconfig.build.json') },
      apiReport: {
        enabled: true,
        reportFileName: door.label,
        reportFolder,
        reportTempFolder: resolve('.tmp/api'),
        includeForgottenExports: true,
      },
      docModel: { enabled: false },
      dtsRollup: { enabled: false },
      tsdocMetadata: { enabled: false },
      messages: {
        compilerMessageReporting: { default: { logLevel: ExtractorLogLevel.Error } },
        extractorMessageReporting: { default: { logLevel: ExtractorLogLevel.None } },
        tsdocMessageReporting: { default: { logLevel: ExtractorLogLevel.None } },
      },
    },
    configObjectFullPath: undefined,
    packageJsonFullPath: resolve('package.json'),
  })
  const result = Extractor.invoke(config, {
    localBuild: !check,
    messageCallback: (message) => {
      message.handled = true
      if (message.logLevel === ExtractorLogLevel.Error) problems.push(`${door.specifier}: ${message.text}`)
    },
  })
  if (result.apiReportChanged && check) problems.push(`${door.specifier}: api/${door.label}.api.md is not up to date`)
}
const known = new Set(doors().map((door) => `${door.label}.api.md`))
for (const name of readdirSync(reportFolder).filter((file) => !known.has(file))) {
  if (check) problems.push(`api/${name} belongs to no door`)
  else rmSync(resolve(reportFolder, name))
}
for (const problem of problems) console.error(problem)
if (problems.length > 0) {
  console.error('Run `npm run api` after a build and review the difference like code.')
  process.exitCode = 1
} else {
  console.log(`${known.size} API reports ${check ? 'are up to date' : 'written'}`)
}
