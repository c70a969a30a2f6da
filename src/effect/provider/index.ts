/**
 * Providers of APIs: what each promises about keys, our keys as they can take them, and what their answers mean. Data and
 * pure functions.
 *
 * @module
 */

export { type AnswerHeaders, type Classified, classifyAnswer, type ProviderAnswer } from './classify.ts'
export { answerOf, classifyFailure } from './failure.ts'
export { KEY_FITS, providerKey } from './key.ts'
export {
  type AnswerKind,
  type AnswerRule,
  checkProfile,
  KEY_LENGTH_MIN,
  KEY_LIFETIME_ASSUMED_MS,
  type KeyCharset,
  type KeyPlace,
  keyLifetimeOf,
  type LookUp,
  type ProviderProfile,
} from './profile.ts'
export { type ProviderName, providers } from './profiles.ts'
