package api

import (
	"encoding/json"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MicroTime is a metav1.MicroTime that can be read in each form that the API server accepts, as kubectl or a backup may
// have it: metav1's own reads six decimals and nothing else, and one object in another form is then an error of each
// list that contains it.
type MicroTime struct{ metav1.MicroTime }

// NewMicroTime returns t as a MicroTime.
func NewMicroTime(t time.Time) MicroTime { return MicroTime{metav1.NewMicroTime(t)} }

// UnmarshalJSON implements json.Unmarshaler. A text that is not a time counts as a time long past.
func (t *MicroTime) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	read, err := time.Parse(time.RFC3339, strings.ToUpper(text))
	if err != nil {
		read = time.Unix(0, 0)
	}
	t.Time = read.Local()
	return nil
}
