package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"k8s.io/client-go/rest"
)

// keyValue is a key with its value, in the JSON format of etcd's gateway.
type keyValue struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value,omitempty"`
}

// etcdKeys returns all keys of kube-apiserver in etcd.
func (s *Server) etcdKeys(ctx context.Context) ([]string, error) {
	var answer struct {
		KVs []keyValue `json:"kvs"`
	}
	all := map[string]any{"key": []byte(registry), "range_end": []byte("/registry0"), "keys_only": true}
	if err := s.etcdCall(ctx, "range", all, &answer); err != nil {
		return nil, err
	}
	keys := make([]string, len(answer.KVs))
	for i, kv := range answer.KVs {
		keys[i] = string(kv.Key)
	}
	return keys, nil
}

// definition reads the CRD at a key of etcd. etcd stores CRDs as JSON.
func (s *Server) definition(ctx context.Context, key string) (definition, error) {
	var answer struct {
		KVs []keyValue `json:"kvs"`
	}
	if err := s.etcdCall(ctx, "range", keyValue{Key: []byte(key)}, &answer); err != nil || len(answer.KVs) == 0 {
		return definition{}, err
	}
	var crd struct {
		Metadata struct{ DeletionTimestamp string }
		Spec     json.RawMessage
	}
	err := json.Unmarshal(answer.KVs[0].Value, &crd)
	return definition{string(crd.Spec), crd.Metadata.DeletionTimestamp != ""}, err
}

// etcdDelete deletes one key from etcd.
func (s *Server) etcdDelete(ctx context.Context, key string) error {
	return s.etcdCall(ctx, "deleterange", keyValue{Key: []byte(key)}, new(struct{}))
}

// etcdCall calls a method of etcd's KV service.
func (s *Server) etcdCall(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	url := "http://" + net.JoinHostPort(s.Etcd, etcdPort) + "/v3/kv/" + method
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Timeout: resetTimeout}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd %s: %s: %s", method, response.Status, text)
	}
	return json.Unmarshal(text, out)
}

// serves returns true if the API server still serves the resource of a CRD with a spec, or still
// includes it in discovery.
func (s *Server) serves(ctx context.Context, spec string) (bool, error) {
	var crd apiextensions
	if err := json.Unmarshal([]byte(spec), &crd); err != nil {
		return false, err
	}
	client, err := rest.HTTPClientFor(s.admin)
	if err != nil {
		return false, err
	}
	defer client.CloseIdleConnections()
	for _, v := range crd.Versions {
		group := "/apis/" + crd.Group + "/" + v.Name
		code, _, err := get(ctx, client, s.admin.Host+group+"/"+crd.Names.Plural)
		if err != nil || code != http.StatusNotFound {
			return true, err
		}
		_, listed, err := get(ctx, client, s.admin.Host+group)
		if err != nil || bytes.Contains(listed, []byte(`"name":"`+crd.Names.Plural+`"`)) {
			return true, err
		}
	}
	return false, nil
}

// apiextensions is the part of a CRD's spec that defines the API paths of its objects.
type apiextensions struct {
	Group    string
	Names    struct{ Plural string }
	Versions []struct{ Name string }
}

func get(ctx context.Context, client *http.Client, url string) (code int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}
