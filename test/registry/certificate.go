package registry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificates writes ca.crt, registry.crt and registry.key into dir.
func certificates(dir string, hosts []string) error {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "registry of a test"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, host)
		}
	}
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	ca, err1 := x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey)
	leaf, err2 := x509.CreateCertificate(rand.Reader, server, authority, key.Public(), caKey)
	private, err3 := x509.MarshalPKCS8PrivateKey(key)
	return errors.Join(
		err1, err2, err3,
		writePEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE", ca),
		writePEM(filepath.Join(dir, "registry.crt"), "CERTIFICATE", leaf),
		writePEM(filepath.Join(dir, "registry.key"), "PRIVATE KEY", private),
	)
}

func writePEM(name, kind string, data []byte) error {
	return os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600)
}
