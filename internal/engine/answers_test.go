package engine_test

import (
	"testing"

	"github.com/headgate/headgate/internal/engine"
)

func TestWhoSaysThatItHasNoSuchModel(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   bool
	}{
		{404, `{"error":{"message":"The model ` + "`x`" + ` does not exist. Valid aliases: base.","type":"NotFoundError","param":"model","code":404}}`, true},
		{404, `{"error": {"message": "The model does not exist.", "type": "NotFoundError", "param": "model", "code": 404}}`, true},
		{404, `{"error":"Request for unknown model: 'x' is not found"}`, true},
		{404, `{"error":"Request for unknown model: 'x' has no available versions"}`, true},
		{404, `{"error":"Model x not found"}`, true},
		{404, `{"error":"Model x with version  not found"}`, true},
		{404, `{"detail":"Not Found"}`, false}, // a path
		{404, `{"error":{"message":"Response not there","type":"NotFoundError","param":"response_id","code":404}}`, false},
		{404, `{"error":{"message":"m","type":"invalid_request_error","param":"model"}}`, false},
		{400, `{"error":{"type":"NotFoundError","param":"model"}}`, false},
		{200, `{"error":"Model x not found"}`, false},
		{404, ``, false},
	} {
		if got := engine.Missing(c.status, []byte(c.body)); got != c.want {
			t.Errorf("%d %s: %v", c.status, c.body, got)
		}
	}
}
