package openflow

// Messages returns the number of the next message, and reserves it.
func (s *Switch) Messages() uint32 { return s.conn.Reserve(1) }

// Lost is the reason why the connection ended.
func (s *Switch) Lost() error { return s.conn.Reason() }

// Unknown is an action that no flow of Fairlead has.
func Unknown(text string) Action { return unknownAction(text) }
