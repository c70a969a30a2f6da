/** A job that calls its provider over TLS without a key: with node:https and its own certificate, then with fetch. */
import { readFileSync } from 'node:fs'
import { createServer, request } from 'node:https'
import type { AddressInfo } from 'node:net'
import type { DrillFile, DrillProvider } from '../../../src/drill/file/format.ts'

const pem = (name: string): string => readFileSync(`test/fixtures/tls/${name}.pem`, 'utf8')

interface Provider extends DrillProvider {
  readonly seen: Map<string, number>
}

async function provider(): Promise<Provider> {
  const seen = new Map<string, number>()
  const server = createServer({ cert: pem('cert'), key: pem('key') }, ({ url = '' }, response) => {
    seen.set(url, (seen.get(url) ?? 0) + 1)
    response.end('{}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `https://127.0.0.1:${(server.address() as AddressInfo).port}`,
    seen,
    async stop() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

const file: DrillFile<Provider> = {
  provider,
  start: ({ providerUrl }) => {
    return async () => {
      await new Promise<void>((resolve, reject) => {
        const charge = request(
          `${providerUrl}/v1/charges`,
          { method: 'POST', ca: Buffer.from(pem('cert')) },
          (answer) => {
            answer.resume().once('end', resolve).once('error', reject)
          },
        )
        charge.on('error', reject).end()
      })
      process.env['NODE_TLS_REJECT_UNAUTHORIZED'] = '0'
      await fetch(`${providerUrl}/v1/mails`, { method: 'POST' })
      process.env['NODE_TLS_REJECT_UNAUTHORIZED'] = '1'
      // Nobody has said that this certificate can be trusted.
      await fetch(`${providerUrl}/v1/distrusted`, { method: 'POST' }).catch(() => {})
    }
  },
  effects: {
    charges: ({ provider: { seen } }) => seen.get('/v1/charges') ?? 0,
    mails: ({ provider: { seen } }) => seen.get('/v1/mails') ?? 0,
    secrets: ({ provider: { seen } }) => 1 + (seen.get('/v1/distrusted') ?? 0),
  },
}

export default file
