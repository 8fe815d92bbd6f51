package importer

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	// etcdTimeout limits the connection to etcd and each call.
	etcdTimeout = 10 * time.Second
	// pageSize is the number of keys per call: a page of the largest records that Headgate accepts
	// stays far below what etcd sends.
	pageSize = 500
)

// etcdConfig is the JSON in ModelMesh's Secret model-serving-etcd, with which it connects to etcd.
// The names of files are keys of the Secret, that is, files in the folder where it is mounted.
type etcdConfig struct {
	Endpoints  string `json:"endpoints"`
	User       string `json:"userid"`
	Password   string `json:"password"`
	RootPrefix string `json:"root_prefix"`

	Certificate           string `json:"certificate"`
	CertificateFile       string `json:"certificate_file"`
	ClientKey             string `json:"client_key"`
	ClientKeyFile         string `json:"client_key_file"`
	ClientCertificate     string `json:"client_certificate"`
	ClientCertificateFile string `json:"client_certificate_file"`
	Authority             string `json:"override_authority"`
}

// readConfig reads the configuration in a file, and the files that it names in the same folder.
func readConfig(path string) (etcdConfig, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return etcdConfig{}, err
	}
	var c etcdConfig
	if json.Unmarshal(text, &c) != nil { // its error may quote the password
		return c, fmt.Errorf("%s: this is not the JSON of ModelMesh's Secret model-serving-etcd", path)
	}
	if c.Endpoints == "" {
		return c, fmt.Errorf("%s: its endpoints are empty", path)
	}
	for _, of := range []struct {
		text *string
		file string
	}{{&c.Certificate, c.CertificateFile}, {&c.ClientKey, c.ClientKeyFile}, {&c.ClientCertificate, c.ClientCertificateFile}} {
		if of.file == "" {
			continue
		}
		pem, err := os.ReadFile(filepath.Join(filepath.Dir(path), filepath.Base(of.file)))
		if err != nil {
			return c, err
		}
		*of.text = string(pem)
	}
	return c, nil
}

// tls returns the TLS configuration; nil for plain text.
func (c *etcdConfig) tls() (*tls.Config, error) {
	if !strings.Contains(c.Endpoints, "https://") && c.Certificate == "" && c.ClientCertificate == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.Certificate != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(c.Certificate)) {
			return nil, errors.New("the certificate of etcd's authority is not PEM")
		}
	}
	if c.ClientCertificate != "" || c.ClientKey != "" {
		own, err := tls.X509KeyPair([]byte(c.ClientCertificate), []byte(c.ClientKey))
		if err != nil {
			return nil, fmt.Errorf("the client certificate for etcd: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// fetch reads all keys below a prefix, as of one revision.
func (c *etcdConfig) fetch(ctx context.Context, prefix string) ([]pair, error) {
	config, err := c.tls()
	if err != nil {
		return nil, err
	}
	var endpoints []string
	for text := range strings.SplitSeq(c.Endpoints, ",") {
		if text = strings.TrimSpace(text); text != "" {
			endpoints = append(endpoints, text)
		}
	}
	var options []grpc.DialOption
	if c.Authority != "" {
		options = append(options, grpc.WithAuthority(c.Authority))
	}
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: endpoints, Username: c.User, Password: c.Password, TLS: config, DialTimeout: etcdTimeout,
		DialOptions: options, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd at %s: %w", strings.Join(endpoints, ", "), err)
	}
	defer client.Close()
	var all []pair
	revision, from, end := int64(0), cmp.Or(prefix, "\x00"), clientv3.GetPrefixRangeEnd(prefix)
	for {
		page, err := fetchPage(ctx, client, from, end, revision)
		if err != nil {
			return nil, fmt.Errorf("etcd at %s: %w", strings.Join(endpoints, ", "), err)
		}
		revision = page.Header.Revision
		for _, kv := range page.Kvs {
			all = append(all, pair{kv.Key, kv.Value})
		}
		if !page.More || len(page.Kvs) == 0 {
			return all, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

func fetchPage(ctx context.Context, client *clientv3.Client, from, end string, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	return client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
}
