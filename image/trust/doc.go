// Package trust signs and verifies bytes with keys that the user holds: offline,
// without a certificate authority and without a transparency log.
//
// A signature is what `cosign sign-blob --key` writes and `cosign verify-blob
// --key` takes: one line of base64 over the message itself. Keys are ECDSA P-256
// and RSA of 2048 to 4096 bits (PKCS #1 v1.5), both with SHA-256, and Ed25519;
// of the latter also the prehashed signatures that cosign makes are taken.
//
// Private keys are PEM, plain or encrypted, in PKCS #8 or in cosign's own form.
// Public keys are PEM, or X.509 certificates, which count while they are valid.
// Who names a certificate trusts that very one: its issuer is not asked.
package trust
