export { canonicalJson } from './fingerprint/canonical-value.ts'
export {
  type Fingerprint,
  type FingerprintMode,
  type FingerprintSecrets,
  fingerprint,
} from './fingerprint/fingerprint.ts'
export {
  type FingerprintRequest,
  type RequestFingerprintOptions,
  type RequestHeaders,
  requestFingerprint,
} from './fingerprint/request.ts'
export { createOnce, type Once, type OnceOptions } from './once.ts'
export { type Rejected, rejected } from './operation/rejected.ts'
export { type ErrorCode, isOnceError, OnceError } from './shared/errors.ts'
