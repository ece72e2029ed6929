package trust

// KeyError says that a key cannot be used: it is none, of a kind that is not
// taken, expired, or its password is wrong.
type KeyError struct {
	Name   string // of the key's file
	Reason string // completes "key NAME: …"
	Hint   string // what to do about it; may be empty
}

func (e *KeyError) Error() string { return "key " + e.Name + ": " + e.Reason }

// SignatureError says that a signature is not one of these bytes by these keys.
type SignatureError struct {
	Reason string // completes "FILE: …"
	Hint   string // what to do about it; may be empty
}

func (e *SignatureError) Error() string { return "signature: " + e.Reason }
