package api

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMicroTime(t *testing.T) {
	at := time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		`"2026-11-26T09:00:00.000000Z"`:        at,
		`"2026-11-26T09:00:00Z"`:               at,
		`"2026-11-26t09:00:00z"`:               at,
		`"2026-11-26T10:00:00+01:00"`:          at,
		`"2026-11-26T09:00:00.5Z"`:             at.Add(time.Second / 2),
		`"2026-11-26T09:00:00.000000001Z"`:     at.Add(1),
		`"2026-11-26T09:00:00+99:99"`:          time.Unix(0, 0),
		`"2026-11-26T09:00:00x5Z"`:             time.Unix(0, 0),
		`"2026-11-26T10:00:00.250000+01:00"`:   at.Add(time.Second / 4),
		`"2026-11-26T09:00:00.1234567890123Z"`: at.Add(123456789),
	} {
		var got MicroTime
		if err := json.Unmarshal([]byte(text), &got); err != nil || !got.Time.Equal(want) {
			t.Errorf("%s is read as %s, %v, want %s", text, got, err, want)
		}
	}
	if err := json.Unmarshal([]byte(`1`), new(MicroTime)); err == nil {
		t.Error("a number is read as a time")
	}
	ours, err := json.Marshal(NewMicroTime(at))
	theirs, terr := json.Marshal(metav1.NewMicroTime(at))
	if err != nil || terr != nil || string(ours) != string(theirs) {
		t.Errorf("written as %s, %v, want %s", ours, err, theirs)
	}
}
