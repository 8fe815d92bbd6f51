package engine_test

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/internal/engine"
)

func TestMissingModelAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   bool
	}{
		{404, `{"error":{"message":"The model ` + "`x`" +
			` does not exist. Valid aliases: base.","type":"NotFoundError","param":"model","code":404}}`, true},
		{404, `{"error": {"message": "The model does not exist.", "type": "NotFoundError", "param": "model", "code": 404}}`, true},
		{404, `{"error":"Request for unknown model: 'x' is not found"}`, true},
		{404, `{"error":"Request for unknown model: 'x' has no available versions"}`, true},
		{404, `{"error":"Model x not found"}`, true},
		{404, `{"error":"Model x with version  not found"}`, true},
		{404, "{\n  \"code\": 404,\n  \"type\": \"ModelNotFoundException\",\n  \"message\": \"Model not found: x\"\n}\n", true},
		{404, `{"error": "Servable not found for request: Latest(x)"}`, true},
		{404, `{"error": "Servable not found for request: Specific(x, 3)"}`, false},
		{404, `{"error":"Request for unknown model: 'x' version 9 is not found"}`, false},
		{404, `{"error":"Model x with version 9 not found"}`, false},
		{404, `{"error":"Model x with version  not found not found"}`, false},      // version is " not found"
		{404, `{"error":"Model x with version 1 with version  not found"}`, false}, // version is "1 with version "
		{404, `{"code":404,"type":"ResourceNotFoundException","message":"Requested resource is not found, please refer to API document."}`, false},
		{503, `{"code":503,"type":"ServiceUnavailableException","message":"Model \"x\" has no worker to serve inference request."}`, false},
		{404, `{"detail":"Not Found"}`, false}, // an unknown path
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

func TestRetryElsewhereAnswers(t *testing.T) {
	const internal = `{"error":{"message":"%s","type":"InternalServerError","param":null,"code":500}}`
	for _, c := range []struct {
		status              int
		later               bool
		body                string
		elsewhere, stopping bool
	}{
		{
			503, false, `{"error":{"message":"The engine is currently busy","type":"Service Unavailable","param":null,"code":503}}`,
			true, false,
		},
		{
			503, true, `{"error":{"message":"The engine is currently busy","type":"Service Unavailable","param":null,"code":503}}`,
			false, false,
		},
		{503, false, `{"error":{"message":"no","type":"server_error"}}`, false, false},
		{500, false, fmt.Sprintf(internal, "cannot schedule new futures after shutdown"), true, true},
		{500, false, fmt.Sprintf(internal, "Server shutting down"), true, true},
		{
			500, false, `{"type":"error","error":{"type":"InternalServerError","message":"cannot schedule new futures after shutdown"}}`,
			true, true,
		},
		{500, false, fmt.Sprintf(internal, "CUDA out of memory"), false, false},
		{400, false, fmt.Sprintf(internal, "Server shutting down"), false, false},
		{200, false, fmt.Sprintf(internal, "Server shutting down"), false, false},
	} {
		if elsewhere, stopping := engine.Elsewhere(c.status, c.later, []byte(c.body)); elsewhere != c.elsewhere || stopping != c.stopping {
			t.Errorf("%d %s: elsewhere %v, stopping %v", c.status, c.body, elsewhere, stopping)
		}
	}
}

func TestWhyAnEngineDidNotLoadAnAdapter(t *testing.T) {
	for words, want := range map[string]engine.LoadFault{
		"Call to add_lora method failed: Worker failed with error 'LoRA rank 16 is greater than max_lora_rank 8.', please check the stack trace above for the root cause": engine.RankTooLarge,
		"Loading lora nope failed: No adapter found for <path>":            engine.FilesMissing,
		"404: Loading lora nope failed: No adapter found for /no/such/dir": engine.FilesMissing,
		"Call to add_lora method failed: CUDA out of memory":               engine.UnknownFault,
		"": engine.UnknownFault,
	} {
		if got := engine.ReadLoadFault(words); got != want {
			t.Errorf("%q: %v, want %v", words, got, want)
		}
	}
}
