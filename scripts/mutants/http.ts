/** Mutants of guarded routes and of fingerprints: what leaves when, who may see what, which requests are the same. */
import { inFile, type Mutant } from './mutant.ts'

const SCENARIOS = 'test/http/scenarios.test.ts'
const FAILURES = 'test/http/failures.test.ts'
const REQUEST = 'test/fingerprint/request.test.ts'
const on = (name: string): string => `routes on memory node ${name}`

export const httpMutants: readonly Mutant[] = [
  ...inFile('src/http/node/held-response.ts', {
    'response-sent-before-the-commit': [
      'headers: headerList(response), body } })',
      'headers: headerList(response), body } })\n    this.release()',
      FAILURES,
      'R09: the answer stays in the process until the COMMIT was answered',
    ],
  }),
  ...inFile('src/http/response.ts', {
    'set-cookie-replayed': [
      'const KEPT: ReadonlySet<string> = new Set([',
      "const KEPT: ReadonlySet<string> = new Set([\n  'set-cookie',",
      SCENARIOS,
      on('SC15, T2: cookies and headers of one moment are sent once and not replayed'),
    ],
  }),
  ...inFile('src/http/replay.ts', {
    'decrypted-before-authorised': [
      "  if (decision !== true) return { kind: 'forbidden' }",
      '',
      SCENARIOS,
      on('T3: rights that were withdrawn end the replay before anything stored is told'),
    ],
    'mismatch-gets-the-stored-answer': [
      "    case 'other':\n      throw reused()",
      "    case 'other':\n      break",
      SCENARIOS,
      on('R03, I4, SC10: the key with another body, query or path parameter is refused'),
    ],
  }),
  ...inFile('src/http/outcome.ts', {
    'server-error-stored-for-ever': [
      'if (status >= 500 || RELEASED.has(status)) return',
      'if (RELEASED.has(status)) return',
      SCENARIOS,
      on('R13, T5, B06: 500 releases the key'),
    ],
    'too-many-requests-stored': [
      '401, 403, 407, 408, 425, 429]',
      '401, 403, 407, 408, 425]',
      SCENARIOS,
      on('R13, T5, B06: 429 releases the key'),
    ],
    'writes-of-a-refusal-kept': [
      "policy.storeIf(status) ? 'reject' : 'release'",
      "policy.storeIf(status) ? 'commit' : 'release'",
      SCENARIOS,
      on('R13, SC14: 409 is final: stored and replayed, its writes rolled back'),
    ],
  }),
  ...inFile('src/http/guard.ts', {
    'key-from-before-the-retention-runs': [
      'if ((await now()).getTime() - madeAt > windowMs) {',
      'if (false) {',
      SCENARIOS,
      on('a time-ordered key from before the retention is refused where the route checks that'),
    ],
    'route-left-out-of-the-scope': [
      "=== 'tenant' ? parts : [...parts, this.#operationOf(exchange)]",
      "=== 'tenant' ? parts : parts",
      SCENARIOS,
      on('R02, SC12: the key on another route is another operation'),
    ],
  }),
  ...inFile('src/http/stored.ts', {
    'unknown-format-guessed-at': [
      'READERS.get(buffer[0] ?? 0)',
      'READERS.get(1)',
      'test/http/stored.test.ts',
      'R41: bytes of a format that this release does not know are not guessed at',
    ],
    'tag-of-an-encrypted-answer-not-checked': [
      'decipher.update(buffer.subarray(start.byteLength, -TAG_BYTES)), decipher.final()]',
      'decipher.update(buffer.subarray(start.byteLength, -TAG_BYTES))]',
      'test/http/stored.test.ts',
      'T2: no bit of an encrypted answer can be changed, and none of it can be cut off',
    ],
  }),
  ...inFile('src/fingerprint/request.ts', {
    'query-left-out-of-the-fingerprint': [
      "lengthPrefixed(sortedByName(formPairs(Buffer.from(query, 'utf8'))).flat()),",
      'lengthPrefixed([]),',
      REQUEST,
      'SC12: /o?a=1&b is not /o?a=1',
    ],
    'names-of-the-query-not-prefixed': [
      "lengthPrefixed(sortedByName(formPairs(Buffer.from(query, 'utf8'))).flat()),",
      "sortedByName(formPairs(Buffer.from(query, 'utf8'))).flat().join(''),",
      REQUEST,
      'SC12: /o?aa=b is not /o?a=ab',
    ],
    'method-left-out-of-the-fingerprint': [
      '    request.method.toUpperCase(),\n    path,',
      "    '',\n    path,",
      'test/fingerprint/request.test.ts',
      'the form of the hash input is pinned: stored fingerprints stay valid',
    ],
  }),
]
