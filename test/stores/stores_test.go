package stores

import (
	"net/http"
	"testing"
)

// TestS3Answers builds versitygw, so that other tests need not wait for that.
func TestS3Answers(t *testing.T) {
	server := RunS3(t)
	client := http.Client{}
	defer client.CloseIdleConnections()
	answer, err := client.Get(server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("a call without credentials gets %d", answer.StatusCode)
	}
}
